/* A text model as a C library: plans for several latency targets, its weights read while it runs.

   struct pliant_error error;
   struct pliant_model *model = pliant_model_open("model-directory", NULL, &error);
   struct pliant_answer answer = {0};
   if (model && !pliant_model_run(model, "a charming journey", 20000, &answer))
       printf("%s %.3f\n", answer.label, answer.score);
   pliant_model_close(model);

   Threads may share a model: their runs take turns, and no thread may use it after pliant_model_close began.
   There is no global state; a library may be open several times. Libraries of different models export the same
   names: a program loads each by dlopen(..., RTLD_LOCAL), and links one at most. All memory is allocated by
   pliant_model_open, but for texts with more than 64 accents in a row. A process that forks must open its own model in the child. */
#ifndef PLIANT_MODEL_H
#define PLIANT_MODEL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum pliant_code {
    PLIANT_OK = 0,
    PLIANT_ARGUMENT, /* an argument makes no sense: an id that the model does not have, a null pointer */
    PLIANT_EMPTY,    /* the text holds no token that the model knows */
    PLIANT_TOO_LONG, /* more tokens than the library was compiled for */
    PLIANT_TARGET,   /* no plan keeps the target; nothing was run */
    PLIANT_NO_TEXT,  /* the library was compiled without a tokenizer: give ids */
    PLIANT_FILE,     /* a file is missing, cannot be read, or has another size */
    PLIANT_VERSION,  /* the files are of another model or format than the library */
    PLIANT_DAMAGED,  /* a file's content is not what was written */
    PLIANT_MEMORY,   /* memory cannot be had, or a text has more than 65535 accents in a row */
    PLIANT_THREAD,   /* a thread cannot be started */
    PLIANT_PROCESSOR /* this processor or system lacks what the kernels use: compile for another --target */
};

struct pliant_error {
    int code;          /* of enum pliant_code */
    char message[244]; /* what is wrong, with the value, the limit and the next step; "" for PLIANT_OK */
};

/* Zeros, or a null pointer, mean the defaults. */
struct pliant_options {
    int n_threads;   /* of the computation, the caller's included; 0: as many as were planned with */
    int best_effort; /* not 0: a target that no plan keeps is answered by the quickest plan */
};

/* Zero it before the first run. `numbers` and `bits` are the caller's memory, or null. */
struct pliant_answer {
    const char *label;      /* of the greatest number; null where the model gives a vector */
    int label_index;        /* its place among the labels; -1 where the model gives a vector */
    float score;            /* its softmax; the sigmoid of a single label; 0 where the model gives a vector */
    float *numbers;         /* logits or vector: room for pliant_model_about(...)->n_numbers */
    uint8_t *bits;          /* room for n_layers x n_slices: what each shard ran with; 32: full, 0: left out */
    uint32_t n_tokens;      /* special tokens included */
    uint32_t n_layers, width; /* of the submodel that ran: layers, and slices of each */
    uint64_t target_us;     /* of the plan that ran: at most what was asked for; 0: none */
    uint64_t predicted_us;  /* 95th percentile, by the profile that was planned with */
    uint64_t elapsed_us;    /* from the call to the answer, waits for other threads included */
    uint64_t read_bytes;    /* of weights that were read in time */
    int met;                /* 1: within the time that was asked for, or none was */
    struct pliant_error error;
};

struct pliant_about {
    const char *name;
    uint32_t n_numbers;          /* of an answer */
    uint32_t n_labels;           /* 0: the model gives a vector */
    const char *const *labels;
    uint32_t most_tokens;        /* longest input, special tokens included */
    uint32_t n_layers, n_slices; /* of the whole model */
    uint32_t n_targets;
    const uint64_t *targets_us;  /* planned for, ascending; a run takes the largest within its own */
    uint64_t preload_bytes, working_bytes, arena_bytes, tables_bytes, scratch_bytes; /* what open allocates */
    int is_direct;               /* 1: weights are read past the page cache */
    int has_text;                /* 0: pliant_model_run gives PLIANT_NO_TEXT */
};

struct pliant_model;

/* Open the model in `directory`: check its files, read what stays in memory, start the threads.
   Null on failure; `error`, unless null, then says why. */
struct pliant_model *pliant_model_open(const char *directory, const struct pliant_options *options,
                                       struct pliant_error *error);

/* Answer a text, UTF-8 that ends in a zero byte (invalid bytes are read as U+FFFD), within `target_us`
   microseconds; 0 asks for the most accurate plan. Returns answer->error.code. Weights that are late lower
   the bits of a layer, and do not delay the answer: `bits` says what ran. */
int pliant_model_run(struct pliant_model *model, const char *text, uint64_t target_us,
                     struct pliant_answer *answer);

/* The same for token ids, special tokens included; `types` is null for zeros. */
int pliant_model_run_ids(struct pliant_model *model, const int32_t *ids, const int32_t *types,
                         uint32_t n_tokens, uint64_t target_us, struct pliant_answer *answer);

/* Token ids of `n_bytes` bytes of text, special tokens included: at most `room` of them are written, `n_tokens`
   says how many there are. Returns error->code. */
int pliant_model_encode(struct pliant_model *model, const char *text, size_t n_bytes, int32_t *ids,
                        uint32_t room, uint32_t *n_tokens, struct pliant_error *error);

/* What it is; valid until it is closed. Null for null. */
const struct pliant_about *pliant_model_about(const struct pliant_model *model);

/* Stop the threads and give everything back; null is ignored. */
void pliant_model_close(struct pliant_model *model);

#ifdef __cplusplus
}
#endif
#endif
