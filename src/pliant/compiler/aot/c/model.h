/* $title: made by pliant. Inputs and outputs are arrays in row-major order, in the order below. */
#ifndef PLIANT_${NAME}_H
#define PLIANT_${NAME}_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct $name;

struct ${name}_tensor {
    const char *name, *dtype; /* dtype by numpy's name: "float32", "int64", ... */
    int rank;
    int64_t shape[8];
    uint64_t n_bytes;
};

enum { ${NAME}_INPUTS = $n_inputs, ${NAME}_OUTPUTS = $n_outputs };
extern const struct ${name}_tensor ${name}_inputs[];  /* ${NAME}_INPUTS of them */
extern const struct ${name}_tensor ${name}_outputs[]; /* ${NAME}_OUTPUTS of them */

/* Map the weights file and start n_threads - 1 helpers; NULL with errno set on failure (EINVAL: the file
   is not this model's; ENOTSUP: this processor or system lacks what the kernels use). All memory a run needs
   is allocated here. */
struct $name *${name}_open(const char *weights, int n_threads);

/* inputs[i] and outputs[i] point to ${name}_inputs[i].n_bytes and ${name}_outputs[i].n_bytes bytes.
   Runs of one model take turns; nothing is allocated. 0, or EDOM when an index that was fed, such as a token
   id, lies outside its dimension: the outputs then mean nothing. */
int ${name}_run(struct $name *model, const void *const *inputs, void *const *outputs);

/* Stop the helpers and give everything back. */
void ${name}_close(struct $name *model);

#ifdef __cplusplus
}
#endif
#endif
