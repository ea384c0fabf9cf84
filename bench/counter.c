/* Count what asks for memory: a library to put before all others (LD_PRELOAD). `allocations()` is the number
   of calls of malloc, calloc, realloc and their aligned kin so far, of all threads; C++'s new ends in them. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static atomic_long n;
/* dlsym itself asks for memory before the real functions are known: it gets some of this. */
static char early[1 << 16];
static size_t used;

static void *from_early(size_t size) {
    size_t at = (used + 63) & ~(size_t)63;
    if (at + size > sizeof early) return NULL;
    used = at + size;
    return early + at;
}
static int is_early(void *p) { return (char *)p >= early && (char *)p < early + sizeof early; }

#define REAL(name, ...) \
    static void *(*real)(__VA_ARGS__); \
    static int asking; \
    if (!real && !asking) { asking = 1; real = (void *(*)(__VA_ARGS__))dlsym(RTLD_NEXT, name); asking = 0; }

long allocations(void) { return atomic_load(&n); }

void *malloc(size_t size) {
    REAL("malloc", size_t)
    atomic_fetch_add(&n, 1);
    return real ? real(size) : from_early(size);
}
void *calloc(size_t count, size_t size) {
    REAL("calloc", size_t, size_t)
    atomic_fetch_add(&n, 1);
    return real ? real(count, size) : from_early(count * size); /* early is zero, and given once */
}
void *realloc(void *p, size_t size) {
    REAL("realloc", void *, size_t)
    atomic_fetch_add(&n, 1);
    if (!is_early(p)) return real ? real(p, size) : from_early(size);
    void *moved = malloc(size);
    size_t there = (size_t)(early + sizeof early - (char *)p);
    return moved ? memcpy(moved, p, size < there ? size : there) : NULL;
}
void *memalign(size_t alignment, size_t size) {
    REAL("memalign", size_t, size_t)
    atomic_fetch_add(&n, 1);
    return real ? real(alignment, size) : NULL;
}
void *aligned_alloc(size_t alignment, size_t size) {
    REAL("aligned_alloc", size_t, size_t)
    atomic_fetch_add(&n, 1);
    return real ? real(alignment, size) : NULL;
}
int posix_memalign(void **out, size_t alignment, size_t size) {
    static int (*real)(void **, size_t, size_t);
    if (!real) real = (int (*)(void **, size_t, size_t))dlsym(RTLD_NEXT, "posix_memalign");
    atomic_fetch_add(&n, 1);
    return real(out, alignment, size);
}
void free(void *p) {
    static void (*real)(void *);
    if (!p || is_early(p)) return;
    if (!real) real = (void (*)(void *))dlsym(RTLD_NEXT, "free");
    real(p);
}
