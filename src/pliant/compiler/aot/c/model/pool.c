/* The threads that share kernels, and forms bound to memory. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include "runtime.h"

extern void walk(struct context *, const struct entry *, int64_t);
extern void help(struct context *, int64_t);
extern void stop(struct context *);

enum { SPINS = 1000 };

struct helper { struct context *context; int64_t index; };

static void *begin(void *helper) {
    struct helper mine = *(struct helper *)helper;
    free(helper);
    help(mine.context, mine.index);
    return NULL;
}

/* What a thread itself has done wrong: the process's handlers tell of it. */
static const int OWN_SIGNALS[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP};

int thread_start(pthread_t *thread, void *(*function)(void *), void *argument) {
    sigset_t all, own;
    sigfillset(&all);
    for (unsigned i = 0; i < sizeof OWN_SIGNALS / sizeof *OWN_SIGNALS; i++)
        sigdelset(&all, OWN_SIGNALS[i]);
    pthread_sigmask(SIG_SETMASK, &all, &own);
    int code = pthread_create(thread, NULL, function, argument);
    pthread_sigmask(SIG_SETMASK, &own, NULL);
    return code;
}

int pool_open(struct pool *pool, int n_threads, uint64_t scratch_bytes, struct pliant_error *error) {
    uint64_t n_scratch = (scratch_bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    uint64_t n = (uint64_t)n_threads;
    char *block = aligned(sizeof(struct context) + n * sizeof(struct slot) + n * n_scratch);
    pool->threads = calloc(n, sizeof *pool->threads);
    if (!block || !pool->threads) {
        give_back(block, sizeof(struct context) + n * sizeof(struct slot) + n * n_scratch);
        return fail(error, PLIANT_MEMORY, "no memory for the scratch of %d threads", n_threads);
    }
    pool->context = (struct context *)block;
    pool->context->slots = (struct slot *)(block + sizeof(struct context));
    pool->context->scratch = block + sizeof(struct context) + n * sizeof(struct slot);
    pool->context->scratch_bytes = (int64_t)n_scratch;
    pool->context->n_threads = n_threads;
    pool->context->spins = SPINS;
    for (int i = 1; i < n_threads; i++) {
        struct helper *helper = malloc(sizeof *helper);
        if (helper)
            *helper = (struct helper){pool->context, i};
        if (!helper || thread_start(&pool->threads[pool->n_started], begin, helper)) {
            free(helper);
            return fail(error, PLIANT_THREAD, "thread %d of %d cannot be started: ask for fewer", i + 1,
                        n_threads);
        }
        pool->n_started++;
    }
    return PLIANT_OK;
}

void pool_close(struct pool *pool) {
    struct context *context = pool->context;
    if (context) {
        stop(context);
        for (int i = 0; i < pool->n_started; i++)
            pthread_join(pool->threads[i], NULL);
        uint64_t each = sizeof(struct slot) + (uint64_t)context->scratch_bytes;
        give_back(context, sizeof *context + (uint64_t)context->n_threads * each);
    }
    free(pool->threads);
    memset(pool, 0, sizeof *pool);
}

int stage_open(struct stage *stage, const struct form *form) {
    stage->form = form;
    if (posix_memalign((void **)&stage->arguments, ALIGNMENT, form->n_arguments + 1))
        stage->arguments = NULL;
    stage->entries = calloc(form->n_calls + 1, sizeof *stage->entries);
    if (!stage->arguments || !stage->entries)
        return PLIANT_MEMORY;
    memcpy(stage->arguments, form->arguments, form->n_arguments);
    for (uint32_t i = 0; i < form->n_calls; i++) {
        stage->entries[i].kernel = form->calls[i].kernel;
        stage->entries[i].arguments = stage->arguments + form->calls[i].arguments;
    }
    return PLIANT_OK;
}

void stage_walk(struct stage *stage, struct pool *pool, void *const *spaces, uint32_t n_rows) {
    const struct form *form = stage->form;
    int64_t rows = n_rows;
    for (uint32_t i = 0; i < form->n_addresses; i++) {
        const struct address *a = &form->addresses[i];
        const char *address = (const char *)spaces[a->space] + a->offset;
        memcpy(stage->arguments + a->at, &address, sizeof address);
    }
    for (uint32_t i = 0; i < form->n_extents; i++)
        memcpy(stage->arguments + form->extents[i], &rows, sizeof rows);
    for (uint32_t i = 0; i < form->n_shares; i++) {
        const struct share *s = &form->shares[i];
        if (s->first <= n_rows) {
            stage->entries[s->call].n_units = s->units + s->per_row * rows;
            stage->entries[s->call].grain = s->grain;
        }
    }
    walk(pool->context, stage->entries, form->n_calls);
    for (uint32_t i = 0; i < form->n_copies; i++) {
        const struct copy *c = &form->copies[i];
        memmove(spaces[c->to], (const char *)spaces[c->from] + c->offset, c->n_bytes);
    }
}

void stage_close(struct stage *stage) {
    free(stage->arguments);
    free(stage->entries);
    memset(stage, 0, sizeof *stage);
}
