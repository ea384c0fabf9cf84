/* Answer the lines of standard input: driver DIRECTORY PAUSE_US TARGET_US WORDS; each answer cold: WORDS, the file
   of the word table, leaves the page cache before it, and the library reads layers past that.

   Prints an answer a line: microseconds of the monotonic clock at its end, target, met, elapsed microseconds,
   tokens, bytes read, numbers as hexadecimal floats, then the bits of all shards; at last this process's memory. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "pliant_model.h"

static void show_memory(void) {
    static char line[256];
    FILE *status = fopen("/proc/self/status", "r");
    while (status && fgets(line, sizeof line, status))
        if (!strncmp(line, "VmHWM", 5) || !strncmp(line, "Rss", 3))
            fputs(line, stdout);
    if (status)
        fclose(status);
}

int main(int n, char **words) {
    struct pliant_error error;
    static char text[1 << 16];
    static float numbers[4096];
    static uint8_t bits[4096];
    int cached = n == 5 ? open(words[4], O_RDONLY) : -1;
    if (cached < 0)
        return 2;
    struct pliant_model *model = pliant_model_open(words[1], NULL, &error);
    if (!model) {
        fprintf(stderr, "%s\n", error.message);
        return 1;
    }
    const struct pliant_about *about = pliant_model_about(model);
    struct timespec pause = {0, atol(words[2]) * 1000}, now;
    while (fgets(text, sizeof text, stdin)) {
        text[strcspn(text, "\n")] = 0;
        struct pliant_answer a = {.numbers = numbers, .bits = bits};
        posix_fadvise(cached, 0, 0, POSIX_FADV_DONTNEED);
        if (pliant_model_run(model, text, strtoull(words[3], NULL, 10), &a)) {
            fprintf(stderr, "%s\n", a.error.message);
            return 1;
        }
        clock_gettime(CLOCK_MONOTONIC, &now);
        printf("%llu %llu %d %llu %u %llu", now.tv_sec * 1000000ull + (unsigned long long)now.tv_nsec / 1000,
               (unsigned long long)a.target_us, a.met, (unsigned long long)a.elapsed_us, a.n_tokens,
               (unsigned long long)a.read_bytes);
        for (uint32_t i = 0; i < about->n_numbers; i++)
            printf(" %a", (double)numbers[i]);
        for (uint32_t i = 0; i < about->n_layers * about->n_slices; i++)
            printf(" %d", bits[i]);
        putchar('\n');
        fflush(stdout);
        if (pause.tv_nsec)
            nanosleep(&pause, NULL);
    }
    show_memory();
    pliant_model_close(model);
    return 0;
}
