/* Answer texts, or lines of standard input: ./example [-t MICROSECONDS] DIRECTORY [TEXT...] */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "pliant_model.h"

static int answer(struct pliant_model *model, const char *text, uint64_t target_us) {
    struct pliant_answer answer = {0};
    if (pliant_model_run(model, text, target_us, &answer)) {
        fprintf(stderr, "%s\n", answer.error.message);
        return 1;
    }
    if (answer.label)
        printf("%s (%.3f), ", answer.label, answer.score);
    printf("%u tokens, %.1f ms%s", answer.n_tokens, (double)answer.elapsed_us / 1e3, answer.met ? "" : ", late");
    if (answer.n_layers)
        printf(", %ux%u", answer.n_layers, answer.width);
    putchar('\n');
    return 0;
}

int main(int n, char **words) {
    uint64_t target_us = 0;
    if (n > 2 && !strcmp(words[1], "-t")) {
        target_us = strtoull(words[2], NULL, 10);
        words += 2;
        n -= 2;
    }
    if (n < 2 || words[1][0] == '-') {
        fprintf(stderr, "usage: example [-t MICROSECONDS] DIRECTORY [TEXT...]\n");
        return 2;
    }
    struct pliant_error error;
    struct pliant_model *model = pliant_model_open(words[1], NULL, &error);
    if (!model) {
        fprintf(stderr, "%s\n", error.message);
        return 1;
    }
    int n_failed = 0;
    for (int i = 2; i < n; i++)
        n_failed += answer(model, words[i], target_us);
    static char line[1 << 16];
    while (n == 2 && fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = 0;
        n_failed += answer(model, line, target_us);
    }
    pliant_model_close(model);
    return n_failed > 0;
}
