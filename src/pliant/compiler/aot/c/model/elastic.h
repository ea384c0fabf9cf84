/* The tables of an elastic model (aot/elastic): its store, forms, and plans for a ladder of targets. */
#ifndef PLIANT_ELASTIC_H
#define PLIANT_ELASTIC_H

#include "runtime.h"

enum work { WORK_EMBED, WORK_LAYER, WORK_HEAD, WORK_LOAD };

/* Slices first .. first + count - 1 of one part of a layer, `start` bytes into what one read brings. */
struct piece { uint8_t layer, part, first, count; uint32_t start; };
/* One read: whole blocks of a layer's file, to byte `to` of the working buffer. */
struct extent { uint32_t layer, n_bytes; uint64_t offset, to; uint32_t first_piece, n_pieces; };
/* Steps of `after` are waited for, those of `prefer` until `latest_us`; -1: always. A load is skipped after
   `latest_us`, and when `consumer`, the step that it is for, has started. */
struct step {
    uint8_t work, layer, form;
    int16_t consumer;
    uint16_t first_after, n_after, first_prefer, n_prefer;
    uint32_t first_extent, n_extents;
    int64_t latest_us;
};
/* For inputs of up to `n_tokens`; `meets` tells whether it keeps its target by the profile. */
struct plan {
    uint64_t target_us, predicted_us;
    uint32_t n_tokens, n_layers, width, n_steps;
    int meets;
    const struct step *steps;
    const uint16_t *waits; /* what first_after and first_prefer count in: numbers of steps */
};
struct linear { uint32_t space; uint64_t packed, rows; }; /* a plain matrix: offsets of tables */

struct elastic {
    const struct file *layer_files; /* of layers that no plan runs: without a name */
    struct word_table words;
    uint32_t n_layers, n_slices, slice_bytes[FULL + 1];
    int full_code;                         /* what a descriptor's `bits` is for full fidelity */
    const uint64_t *hashes;                /* [n_layers][FULL + 1][n_slices] */
    const uint8_t *held;                   /* [n_layers][n_slices]: parts in the preload buffer, bit by bit */
    const struct extent *preload;          /* read at open, `to` counts in the preload buffer */
    const struct extent *extents;
    const struct piece *pieces;
    uint32_t n_preload;
    uint64_t preload_bytes, bounce_bytes, ring_bytes, arena_bytes, hidden_at, sums_at, scratch_bytes;
    uint32_t n_sums;                       /* int32 of a layer's column sums, with their header; 0: none are kept */
    const struct plan *plans;
    uint32_t n_plans, n_forms, block_rows;
    const struct form *forms;              /* embedding, head, then a layer's of each width */
    const uint64_t *places;                /* [n_layers + 1][MOST_TABLES]: where a walk's tables stand; last: ends */
    const uint64_t *decoders;              /* [n_layers][PLANES]: offsets of decode tables by bits - 1 */
    const uint64_t *outliers;              /* [n_layers][3]: rows, offsets, values */
    uint32_t outlier_columns;              /* of `rows` */
    const struct linear *linears;
    uint32_t n_linears, n_answer;          /* floats that the head writes */
};

/* A slice for the kernels, as kernels/coded/gemm_args.py lays it out. */
struct slice {
    int64_t bits;
    const void *planes[PLANES], *full, *table, *outlier_rows, *outlier_offsets, *outlier_values;
};

struct run { /* of one plan, shared by both threads under `lock` */
    const struct plan *plan;
    uint64_t start_us, read_bytes;
    uint8_t *done, *started, *arrived; /* by step; parts that are there: [n_layers][n_slices] */
    uint8_t *summed; /* [n_layers][n_slices]: bits in a layer's column sums; 0: the slice is not in them */
    int is_left, code;
    struct pliant_error error;
};

struct reader {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake, ended; /* there is a run to read for; a step has ended, or the reader is idle */
    int is_open, is_busy, is_closing;
};

struct engine {
    const struct elastic *data;
    struct stage *stages;
    struct slice *slices, linears[4];
    unsigned char *preload, *ring, *arena, *words;
    int64_t *blocks;
    float *answer;
    int *files, words_file, is_direct;
    uint32_t most_steps;
    struct run run;
    struct reader reader;
};

/* Read one extent to `to`, and check what it brings. */
int pipeline_read(struct engine *engine, const struct extent *extent, unsigned char *to, struct pliant_error *error);
/* The slices of `piece` stand at `at`. */
void pipeline_place(struct engine *engine, const struct piece *piece, unsigned char *at);
int pipeline_open(struct engine *engine, struct pliant_error *error);
/* Begin to read for a plan, once the reads of the run before have ended. */
void pipeline_begin(struct engine *engine, const struct plan *plan);
/* Both with the reader's lock held: wait until a step may start; run the slices of a layer with what is there. */
void pipeline_await(struct engine *engine, const struct step *step);
void pipeline_set_bits(struct engine *engine, uint32_t layer, uint32_t width, const unsigned char *tables,
                       uint8_t *bits);
/* A layer's column sums in the arena: a header, whose first number is 0 where the layer must compute them. */
int32_t *sums_of(const struct engine *engine, uint32_t layer);
void pipeline_close(struct engine *engine);

#endif
