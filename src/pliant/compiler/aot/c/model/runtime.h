/* What the parts of the library share. Callers read pliant_model.h. */
#ifndef PLIANT_RUNTIME_H
#define PLIANT_RUNTIME_H

#include <pthread.h>
#include "pliant_model.h"

enum { ALIGNMENT = 64, BLOCK = 4096, PLANES = 6, FULL = PLANES, FULL_BITS = 32, MOST_TABLES = 32 };

/* The pool's native code and its memory, as kernels/runtime/walker.py lays them out. */
typedef void kernel_function(void *arguments, int64_t low, int64_t high, void *scratch);
struct entry { kernel_function *kernel; void *arguments; int64_t n_units, grain; };
struct slot { int64_t ticket, limit, pad[6]; };
struct context {
    int64_t done, pad0[7];
    void *kernel, *arguments;
    int64_t grain, sequence;
    void *scratch;
    int64_t scratch_bytes;
    struct slot *slots;
    int64_t n_threads, spins;
    int32_t cpu, epoch, parked, stop, pad1[10];
};
struct pool { struct context *context; pthread_t *threads; int n_started; };

/* Start a thread that takes no signals of the process. */
int thread_start(pthread_t *thread, void *(*function)(void *), void *argument);
int pool_open(struct pool *pool, int n_threads, uint64_t scratch_bytes, struct pliant_error *error);
void pool_close(struct pool *pool);

/* A form: a compiled graph as calls whose arguments hold addresses. Spaces from SPACE_TABLES on are places in
   the resident tables, which the caller of `stage_walk` gives. */
enum space { SPACE_ARENA, SPACE_HIDDEN, SPACE_BLOCKS, SPACE_IDS, SPACE_TYPES, SPACE_WORDS, SPACE_SLICES,
             SPACE_SUMS, SPACE_PROJECT, SPACE_DENSE, SPACE_CLASSIFIER, SPACE_ANSWER, SPACE_TABLES };
struct address { uint32_t at, space; uint64_t offset; };
struct call { kernel_function *kernel; uint32_t arguments; };
/* Of inputs of `first` rows and more, call `call` has units + per_row * rows units. */
struct share { uint32_t call, first; int64_t units, per_row, grain; };
struct copy { uint32_t to, from; uint64_t offset, n_bytes; }; /* of whole tensors, after the calls */
struct form {
    const unsigned char *arguments;
    const struct address *addresses;
    const uint32_t *extents; /* where the arguments hold the number of rows, 64 bits each */
    const struct call *calls;
    const struct share *shares; /* of one call in rising order of `first` */
    const struct copy *copies;
    uint32_t n_arguments, n_addresses, n_extents, n_calls, n_shares, n_copies;
};
struct stage { const struct form *form; unsigned char *arguments; struct entry *entries; };

int stage_open(struct stage *stage, const struct form *form);
void stage_walk(struct stage *stage, struct pool *pool, void *const *spaces, uint32_t n_rows);
void stage_close(struct stage *stage);

/* Files. */
struct file { const char *name; uint64_t n_bytes, xxh3; };

uint64_t xxh3_64(const void *data, size_t n);
int fail(struct pliant_error *error, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));
void *aligned(uint64_t n_bytes);      /* zeroed, on whole pages; null where there is none */
void give_back(void *memory, uint64_t n_bytes);
/* Open a file of the model's directory and check its size; -1 and `error` on failure. */
int file_open(const char *directory, const struct file *file, int *is_direct, struct pliant_error *error);
/* Read exactly `n` bytes; what is missing is an error. */
int file_read(int descriptor, const char *name, void *to, uint64_t n, uint64_t offset,
              struct pliant_error *error);
/* A whole file in memory, its content checked; null and `error` on failure. */
unsigned char *file_load(const char *directory, const struct file *file, struct pliant_error *error);
/* Check that the manifest in the directory is of the store that the library was made from. */
int check_manifest(const char *directory, const char *name, const char *identity, int newest,
                   struct pliant_error *error);

/* A table of words' vectors: offsets of its rows and of their XXH3 in a file. */
struct word_table { struct file file; uint64_t rows, row_bytes, hashes; };
/* The rows of `ids`, one behind the other, each checked. */
int words_read(const struct word_table *table, int file, const int32_t *ids, uint32_t n, unsigned char *to,
               struct pliant_error *error);

/* Text. `tables` is a file of aot/model/text_tables.py; the offsets are into it. */
struct added;
struct text_model {
    struct file file;
    uint64_t blocks, index, records, sequences, composed; /* of code points */
    uint64_t slots, words, pool;            /* vocabulary: hash table of words, their ends, their bytes */
    uint32_t n_slots, n_composed, n_added, most_chars, most_bytes; /* of a word that is known */
    int32_t unknown;
    int is_word_piece, decomposes, composes;
    const char *prefix;                     /* of pieces inside a word */
    const char *replaced, *replacement;     /* before all else; or null */
    const struct added *added;              /* found in the raw text, the longest first */
    const int32_t *before, *after;          /* special tokens around a text */
    uint32_t n_before, n_after;
};
struct text { const struct text_model *model; unsigned char *tables; };
/* A growing list of ids with room for `room`: `n` counts on behind it. */
struct ids { int32_t *ids; uint32_t n, room, most; };

int text_open(struct text *text, const struct text_model *model, const char *directory,
              struct pliant_error *error);
int text_encode(const struct text *text, const unsigned char *bytes, size_t n, struct ids *ids,
                struct pliant_error *error);
void text_close(struct text *text);

/* A model: what is the same for all kinds, and what elastic.c or recurrent.c adds. */
struct model_data {
    struct pliant_about about; /* but for is_direct */
    const char *manifest, *identity;
    int newest_version, n_threads, is_normalized;
    uint32_t vocab, n_types;
    int32_t padding; /* an id that has no position, such as RoBERTa's; -1: none */
    struct file tables;
    const struct text_model *text; /* null: ids only */
    const void *kind;
};
extern const struct model_data PLIANT_DATA;
const char *processor_lacks(void); /* a feature that the kernels use; null: this processor has all */

struct pliant_model {
    const struct model_data *data;
    struct pliant_about about;
    int best_effort, n_threads;
    pthread_mutex_t lock;
    struct pool pool;
    struct text text;
    int32_t *ids, *types;
    float *numbers;
    unsigned char *tables;
    void *kind;
};

uint64_t now_us(void);
/* Of each kind: `kind_run` leaves the numbers in model->numbers and fills in what ran. */
int kind_open(struct pliant_model *model, const char *directory, struct pliant_error *error);
int kind_run(struct pliant_model *model, uint32_t n_tokens, uint64_t target_us, struct pliant_answer *answer);
void kind_close(struct pliant_model *model);

#endif
