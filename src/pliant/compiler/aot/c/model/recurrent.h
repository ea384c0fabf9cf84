/* The tables of a recurrent model. */
#ifndef PLIANT_RECURRENT_H
#define PLIANT_RECURRENT_H

#include "runtime.h"

struct recurrent {
    struct word_table words;
    int is_half; /* float16 vectors, else float32 */
    uint32_t n_inputs, width;
    uint64_t arena_bytes, scratch_bytes;
    const struct form *forms; /* one */
};

#endif
