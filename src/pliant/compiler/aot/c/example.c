/* Run $name on files of raw input bytes, or on zeros: ./example [-t THREADS] WEIGHTS [INPUT...] > outputs.bin */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "$name.h"

int main(int n, char **words) {
    const char *program = words[0];
    int n_threads = 2;
    if (n > 2 && !strcmp(words[1], "-t")) {
        n_threads = atoi(words[2]);
        words += 2;
        n -= 2;
    }
    if (n < 2 || n > 2 + ${NAME}_INPUTS || n_threads < 1 || words[1][0] == '-') {
        fprintf(stderr, "usage: %s [-t THREADS] WEIGHTS [INPUT...] (raw bytes, one file an input, at most %d;"
                        " zeros where missing)\n", program, ${NAME}_INPUTS);
        return 2;
    }
    struct $name *model = ${name}_open(words[1], n_threads);
    if (!model) {
        perror(words[1]);
        return 1;
    }
    const void *inputs[${NAME}_INPUTS + 1];
    void *outputs[${NAME}_OUTPUTS + 1];
    for (int i = 0; i < ${NAME}_INPUTS; i++) {
        void *data = calloc(1, ${name}_inputs[i].n_bytes + 1);
        FILE *file = i + 2 < n ? fopen(words[i + 2], "rb") : NULL;
        if (i + 2 < n && (!file || fread(data, 1, ${name}_inputs[i].n_bytes, file) != ${name}_inputs[i].n_bytes)) {
            fprintf(stderr, "%s does not hold the %llu bytes of input %s\n", words[i + 2],
                    (unsigned long long)${name}_inputs[i].n_bytes, ${name}_inputs[i].name);
            return 1;
        }
        if (file)
            fclose(file);
        inputs[i] = data;
    }
    for (int i = 0; i < ${NAME}_OUTPUTS; i++)
        outputs[i] = calloc(1, ${name}_outputs[i].n_bytes + 1);
    if (${name}_run(model, inputs, outputs)) {
        fprintf(stderr, "an index in the inputs lies outside its dimension\n");
        return 1;
    }
    for (int i = 0; i < ${NAME}_OUTPUTS; i++)
        fwrite(outputs[i], 1, ${name}_outputs[i].n_bytes, stdout);
    ${name}_close(model);
    return 0;
}
