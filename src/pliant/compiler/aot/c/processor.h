/* Whether this processor can execute the kernels: without this check they end the process by SIGILL. */
#ifndef PLIANT_PROCESSOR_H
#define PLIANT_PROCESSOR_H

#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>
#ifdef __x86_64__
#include <cpuid.h>
#else
#include <sys/auxv.h>
#endif

/* A bit of cpuid's answer to (leaf, subleaf), word 0 to 3 for eax to edx; on Arm of auxiliary value `leaf`. */
struct feature { const char *name; uint32_t leaf, subleaf, word, bit; };

static int has_feature(const struct feature *f) {
#ifdef __x86_64__
    unsigned words[4];
    return __get_cpuid_count(f->leaf, f->subleaf, &words[0], &words[1], &words[2], &words[3]) &&
           words[f->word] >> f->bit & 1;
#else
    return getauxval(f->leaf) >> f->bit & 1;
#endif
}

/* The name of the first of `n` features that this processor or system lacks; null if it has all.
   `states` are the bits of XCR0 that must be set: registers that the system saves (x86-64). */
static const char *missing_feature(const struct feature *features, size_t n, uint32_t states, int uses_tiles) {
    for (size_t i = 0; i < n; i++)
        if (!has_feature(&features[i]))
            return features[i].name;
#ifdef __x86_64__
    if (states) { /* the table then has OSXSAVE */
        uint32_t low, high;
        __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
        if ((low & states) != states)
            return "saved vector registers";
    }
    /* arch_prctl(ARCH_REQ_XCOMP_PERM, XTILEDATA): Linux grants AMX's registers to processes that ask. */
    if (uses_tiles && syscall(158L, 0x1023L, 18L))
        return "access to AMX's registers";
#else
    (void)states;
    (void)uses_tiles;
#endif
    return NULL;
}

#endif
