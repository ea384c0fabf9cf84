/* The pipeline of a run: one thread reads what a plan's later layers need, while the caller's computes. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <time.h>
#include "elastic.h"

void pipeline_place(struct engine *engine, const struct piece *piece, unsigned char *at) {
    const struct elastic *data = engine->data;
    struct slice *slices = engine->slices + piece->layer * data->n_slices + piece->first;
    for (uint32_t i = 0; i < piece->count; i++, at += data->slice_bytes[piece->part])
        *(piece->part == FULL ? &slices[i].full : &slices[i].planes[piece->part]) = at;
}

int pipeline_read(struct engine *engine, const struct extent *extent, unsigned char *to,
                  struct pliant_error *error) {
    const struct elastic *data = engine->data;
    const char *name = data->layer_files[extent->layer].name;
    int file = engine->files[extent->layer];
    if (!engine->is_direct)
        posix_fadvise(file, (off_t)extent->offset, extent->n_bytes, POSIX_FADV_DONTNEED);
    int code = file_read(file, name, to, extent->n_bytes, extent->offset, error);
    for (uint32_t p = 0; !code && p < extent->n_pieces; p++) {
        const struct piece *piece = &data->pieces[extent->first_piece + p];
        uint32_t size = data->slice_bytes[piece->part];
        const uint64_t *hashes = data->hashes + (piece->layer * (FULL + 1) + piece->part) * data->n_slices;
        for (uint32_t i = 0; !code && i < piece->count; i++)
            if (xxh3_64(to + piece->start + i * (uint64_t)size, size) != hashes[piece->first + i])
                code = fail(error, PLIANT_DAMAGED, "%s is damaged: layer %d, part %d, slice %u is not what was "
                            "written; copy it again", name, piece->layer, piece->part, piece->first + i);
    }
    return code;
}

/* The lock is held. */
static int is_late(const struct run *run, const struct step *step) {
    if (step->consumer >= 0 && run->started[step->consumer])
        return 1;
    return step->latest_us >= 0 && (int64_t)(now_us() - run->start_us) > step->latest_us;
}

static void load(struct engine *engine, const struct step *step) {
    struct run *run = &engine->run;
    for (uint32_t e = 0; e < step->n_extents; e++) {
        const struct extent *extent = &engine->data->extents[step->first_extent + e];
        struct pliant_error error = {0};
        int code = pipeline_read(engine, extent, engine->ring + extent->to, &error);
        pthread_mutex_lock(&engine->reader.lock);
        if (code && !run->code) {
            run->code = code;
            run->error = error;
        }
        for (uint32_t p = 0; !code && p < extent->n_pieces; p++) {
            const struct piece *piece = &engine->data->pieces[extent->first_piece + p];
            pipeline_place(engine, piece, engine->ring + extent->to + piece->start);
            uint8_t *arrived = run->arrived + piece->layer * engine->data->n_slices + piece->first;
            for (uint32_t i = 0; i < piece->count; i++)
                arrived[i] |= (uint8_t)(1 << piece->part);
            run->read_bytes += run->is_left ? 0 : piece->count * (uint64_t)engine->data->slice_bytes[piece->part];
        }
        int is_over = run->code || run->is_left;
        pthread_mutex_unlock(&engine->reader.lock);
        if (is_over)
            return;
    }
}

static int are_done(const struct run *run, uint16_t first, uint16_t n) {
    for (uint16_t i = 0; i < n; i++)
        if (!run->done[run->plan->waits[first + i]])
            return 0;
    return 1;
}

/* The lock is held at the beginning and at the end. */
static void read_all(struct engine *engine) {
    struct run *run = &engine->run;
    for (uint32_t i = 0; i < run->plan->n_steps && !run->code; i++) {
        const struct step *step = &run->plan->steps[i];
        if (step->work != WORK_LOAD)
            continue;
        while (!run->code && !run->is_left && !are_done(run, step->first_after, step->n_after))
            pthread_cond_wait(&engine->reader.ended, &engine->reader.lock);
        if (run->code || run->is_left)
            break;
        if (!is_late(run, step)) {
            pthread_mutex_unlock(&engine->reader.lock);
            load(engine, step);
            pthread_mutex_lock(&engine->reader.lock);
        }
        run->done[i] = 1;
        pthread_cond_broadcast(&engine->reader.ended);
    }
}

static void *serve(void *argument) {
    struct engine *engine = argument;
    struct reader *reader = &engine->reader;
    pthread_mutex_lock(&reader->lock);
    for (;;) {
        while (!reader->is_busy && !reader->is_closing)
            pthread_cond_wait(&reader->wake, &reader->lock);
        if (reader->is_closing)
            break;
        read_all(engine);
        reader->is_busy = 0;
        pthread_cond_broadcast(&reader->ended);
    }
    pthread_mutex_unlock(&reader->lock);
    return NULL;
}

/* Wait for what a step needs, then until its latest start for what it prefers. The lock is held. */
void pipeline_await(struct engine *engine, const struct step *step) {
    struct run *run = &engine->run;
    struct reader *reader = &engine->reader;
    while (!run->code && !are_done(run, step->first_after, step->n_after))
        pthread_cond_wait(&reader->ended, &reader->lock);
    uint64_t latest_us = run->start_us + (uint64_t)step->latest_us;
    struct timespec until = {(time_t)(latest_us / 1000000), (long)(latest_us % 1000000) * 1000};
    while (!run->code && !are_done(run, step->first_prefer, step->n_prefer)) {
        if (step->latest_us < 0)
            pthread_cond_wait(&reader->ended, &reader->lock);
        else if (pthread_cond_timedwait(&reader->ended, &reader->lock, &until) == ETIMEDOUT)
            break;
    }
}

/* What a slice runs with, by the parts that are there: full fidelity, or planes without a gap. */
static int bits_of(unsigned arrived) { return arrived >> FULL & 1 ? FULL_BITS : __builtin_ctz(~arrived); }

int32_t *sums_of(const struct engine *engine, uint32_t layer) {
    return (int32_t *)(void *)(engine->arena + engine->data->sums_at) + layer * (uint64_t)engine->data->n_sums;
}

/* The lock is held. */
void pipeline_set_bits(struct engine *engine, uint32_t layer, uint32_t width, const unsigned char *tables,
                       uint8_t *bits) {
    const struct elastic *data = engine->data;
    uint8_t *summed = engine->run.summed + layer * data->n_slices;
    int32_t are_same = 1;
    for (uint32_t s = 0; s < data->n_slices; s++) {
        struct slice *slice = &engine->slices[layer * data->n_slices + s];
        int k = s < width ? bits_of(engine->run.arrived[layer * data->n_slices + s]) : 0;
        are_same &= summed[s] == k;
        summed[s] = (uint8_t)k;
        if (!k)
            continue;
        slice->bits = k == FULL_BITS ? data->full_code : k;
        slice->table = k == FULL_BITS ? NULL : tables + data->decoders[layer * PLANES + (uint32_t)k - 1];
        if (bits)
            bits[layer * data->n_slices + s] = (uint8_t)k;
    }
    if (data->n_sums)
        *sums_of(engine, layer) = are_same;
}

/* Begin to read for a plan, once the reads of the run before have ended. */
void pipeline_begin(struct engine *engine, const struct plan *plan) {
    struct run *run = &engine->run;
    uint64_t start_us = now_us(); /* reads that are left of the run before count too */
    pthread_mutex_lock(&engine->reader.lock);
    while (engine->reader.is_busy)
        pthread_cond_wait(&engine->reader.ended, &engine->reader.lock);
    memset(run->done, 0, engine->most_steps);
    memset(run->started, 0, engine->most_steps);
    memcpy(run->arrived, engine->data->held, engine->data->n_layers * engine->data->n_slices);
    run->plan = plan;
    run->read_bytes = 0;
    run->is_left = run->code = 0;
    run->start_us = start_us;
    engine->reader.is_busy = 1;
    pthread_cond_signal(&engine->reader.wake);
    pthread_mutex_unlock(&engine->reader.lock);
}

int pipeline_open(struct engine *engine, struct pliant_error *error) {
    struct reader *reader = &engine->reader;
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&reader->lock, NULL);
    pthread_cond_init(&reader->wake, &monotonic);
    pthread_cond_init(&reader->ended, &monotonic);
    pthread_condattr_destroy(&monotonic);
    if (thread_start(&reader->thread, serve, engine))
        return fail(error, PLIANT_THREAD, "the thread that reads weights cannot be started");
    reader->is_open = 1;
    return PLIANT_OK;
}

void pipeline_close(struct engine *engine) {
    if (!engine->reader.is_open)
        return;
    pthread_mutex_lock(&engine->reader.lock);
    engine->reader.is_closing = 1;
    pthread_cond_broadcast(&engine->reader.wake);
    pthread_mutex_unlock(&engine->reader.lock);
    pthread_join(engine->reader.thread, NULL);
}
