/* What pliant's ahead-of-time programs share: map the weights, fill the addresses in, walk the table.
   After NAME_open nothing is allocated. The tables below come from the model. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include "processor.h"

/* As kernels/runtime/walker.py lays them out. */
struct entry { void (*kernel)(void *, int64_t, int64_t, void *); void *arguments; int64_t n_units, grain; };
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
_Static_assert(sizeof(struct context) == $context_bytes, "the walker's context");
_Static_assert(sizeof(struct slot) == $slot_bytes, "a thread's range");
extern void walk(struct context *, const struct entry *, int64_t);
extern void help(struct context *, int64_t);
extern void stop(struct context *);

enum { ALIGNMENT = 64, SPINS = 1000 };
enum space { ARENA, WEIGHTS, INPUT, OUTPUT };
struct address { uint32_t at; uint16_t space, index; uint64_t offset; };
struct row { uint32_t kernel, arguments; int64_t n_units, grain; };
struct copy { uint16_t output, space, index; uint64_t offset; };
struct fault { int64_t dim, index; }; /* as kernels/move/index_gather.py lays it out */

$features
$tables

struct $name {
    struct context context; /* first: it needs the alignment */
    pthread_mutex_t lock;
    pthread_t *threads;
    int n_started;
    const unsigned char *weights;
    unsigned char *arena, *arguments;
    struct entry *entries;
    void *block;
};

struct helper { struct context *context; int64_t index; };

static void *begin(void *helper) {
    struct helper mine = *(struct helper *)helper;
    free(helper);
    help(mine.context, mine.index);
    return NULL;
}

/* The program's signals stay with its own threads; those that a fault of the helper itself raises do not. */
static int start_helper(pthread_t *thread, struct helper *helper) {
    static const int own_faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP};
    sigset_t all, own;
    sigfillset(&all);
    for (size_t i = 0; i < sizeof own_faults / sizeof *own_faults; i++)
        sigdelset(&all, own_faults[i]);
    pthread_sigmask(SIG_SETMASK, &all, &own);
    int code = pthread_create(thread, NULL, begin, helper);
    pthread_sigmask(SIG_SETMASK, &own, NULL);
    return code;
}

static void put(unsigned char *at, const void *address) { memcpy(at, &address, sizeof address); }

static int map_weights(struct $name *model, const char *path) {
    struct stat about;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return -1;
    if (fstat(file, &about) || (uint64_t)about.st_size != WEIGHTS_BYTES) {
        close(file);
        errno = EINVAL;
        return -1;
    }
    void *mapped = mmap(NULL, WEIGHTS_BYTES, PROT_READ, MAP_PRIVATE, file, 0);
    close(file);
    if (mapped == MAP_FAILED)
        return -1;
    model->weights = mapped;
    uint64_t hash = UINT64_C(14695981039346656037);
    for (uint64_t i = 0; i < HEADER_BYTES; i++)
        hash = (hash ^ model->weights[i]) * UINT64_C(1099511628211);
    if (hash == HEADER_HASH)
        return 0;
    errno = EINVAL;
    return -1;
}

struct $name *${name}_open(const char *weights, int n_threads) {
    if (n_threads < 1) {
        errno = EINVAL;
        return NULL;
    }
    if (missing_feature(FEATURES, N_FEATURES, STATES, USES_TILES)) {
        errno = ENOTSUP;
        return NULL;
    }
    uint64_t n_scratch = (SCRATCH_BYTES + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    uint64_t sizes[] = {sizeof(struct $name), ARENA_BYTES, n_scratch * n_threads, sizeof ARGUMENTS,
                        sizeof(struct entry) * N_ROWS, sizeof(pthread_t) * n_threads,
                        sizeof(struct slot) * n_threads};
    uint64_t total = ALIGNMENT;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        total += (sizes[i] + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    void *block = calloc(1, total);
    if (!block)
        return NULL;
    unsigned char *parts[sizeof sizes / sizeof *sizes];
    unsigned char *at = (unsigned char *)(((uintptr_t)block + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        parts[i] = at;
        at += (sizes[i] + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    }
    struct $name *model = (struct $name *)parts[0];
    model->block = block;
    model->arena = parts[1];
    model->context.scratch = parts[2];
    model->context.scratch_bytes = (int64_t)n_scratch;
    model->context.spins = SPINS;
    model->arguments = parts[3];
    model->entries = (struct entry *)parts[4];
    model->threads = (pthread_t *)parts[5];
    model->context.slots = (struct slot *)parts[6];
    model->context.n_threads = n_threads;
    pthread_mutex_init(&model->lock, NULL);
    if (map_weights(model, weights)) {
        int why = errno;
        ${name}_close(model);
        errno = why;
        return NULL;
    }
    memcpy(model->arguments, ARGUMENTS, sizeof ARGUMENTS);
    for (size_t i = 0; i < N_ADDRESSES; i++) {
        const struct address *a = &ADDRESSES[i];
        if (a->space <= WEIGHTS)
            put(model->arguments + a->at, (a->space == ARENA ? model->arena : model->weights) + a->offset);
    }
    for (size_t i = 0; i < N_ROWS; i++) {
        const struct row *r = &ROWS[i];
        struct entry entry = {KERNELS[r->kernel], model->arguments + r->arguments, r->n_units, r->grain};
        model->entries[i] = entry;
    }
    for (int i = 1; i < n_threads; i++) {
        struct helper *helper = malloc(sizeof *helper);
        if (helper)
            *helper = (struct helper){&model->context, i};
        if (!helper || start_helper(&model->threads[model->n_started], helper)) {
            free(helper);
            ${name}_close(model);
            errno = EAGAIN;
            return NULL;
        }
        model->n_started++;
    }
    return model;
}

static const unsigned char *base(const struct $name *model, unsigned space, unsigned index,
                                 const void *const *inputs, void *const *outputs) {
    switch (space) {
    case ARENA: return model->arena;
    case WEIGHTS: return model->weights;
    case INPUT: return inputs[index];
    default: return outputs[index];
    }
}

int ${name}_run(struct $name *model, const void *const *inputs, void *const *outputs) {
    int result = 0;
    pthread_mutex_lock(&model->lock);
    for (size_t i = 0; i < N_ADDRESSES; i++) {
        const struct address *a = &ADDRESSES[i];
        if (a->space > WEIGHTS)
            put(model->arguments + a->at, base(model, a->space, a->index, inputs, outputs) + a->offset);
    }
    walk(&model->context, model->entries, N_ROWS);
    for (const uint32_t *at = FAULTS; at < FAULTS + N_FAULTS; at++) {
        struct fault *fault = (struct fault *)(model->arguments + *at);
        if (fault->dim)
            result = EDOM;
        fault->dim = 0;
    }
    for (const struct copy *c = COPIES; c < COPIES + N_COPIES; c++)
        memmove(outputs[c->output], base(model, c->space, c->index, inputs, outputs) + c->offset,
                ${name}_outputs[c->output].n_bytes);
    pthread_mutex_unlock(&model->lock);
    return result;
}

void ${name}_close(struct $name *model) {
    if (!model)
        return;
    stop(&model->context);
    for (int i = 0; i < model->n_started; i++)
        pthread_join(model->threads[i], NULL);
    if (model->weights)
        munmap((void *)model->weights, WEIGHTS_BYTES);
    pthread_mutex_destroy(&model->lock);
    free(model->block);
}
