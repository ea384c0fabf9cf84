/* Runs of an ahead-of-time library, what they allocate counted: ./counted WEIGHTS RUNS OUT INPUT...
   Prints allocations before the first run and those of all RUNS; writes the first output to OUT. */
#include <stdio.h>
#include <stdlib.h>
#include "model.h"

long allocations(void) __attribute__((weak)); /* counter.c's, when it is preloaded */

int main(int n, char **words) {
    if (n < 4 + MODEL_INPUTS || !allocations) return 2;
    struct model *model = model_open(words[1], 2);
    if (!model) { perror(words[1]); return 1; }
    const void *inputs[MODEL_INPUTS + 1];
    void *outputs[MODEL_OUTPUTS + 1];
    for (int i = 0; i < MODEL_INPUTS; i++) {
        void *data = calloc(1, model_inputs[i].n_bytes + 1);
        FILE *file = fopen(words[4 + i], "rb");
        if (!file || fread(data, 1, model_inputs[i].n_bytes, file) != model_inputs[i].n_bytes) return 1;
        fclose(file);
        inputs[i] = data;
    }
    for (int i = 0; i < MODEL_OUTPUTS; i++) outputs[i] = calloc(1, model_outputs[i].n_bytes + 1);
    int runs = atoi(words[2]);
    long before = allocations();
    for (int i = 0; i < runs; i++) model_run(model, inputs, outputs);
    long during = allocations() - before;
    FILE *out = fopen(words[3], "wb");
    if (!out || fwrite(outputs[0], 1, model_outputs[0].n_bytes, out) != model_outputs[0].n_bytes) return 1;
    fclose(out);
    printf("{\"before\": %ld, \"during\": %ld}\n", before, during);
    model_close(model);
    return 0;
}
