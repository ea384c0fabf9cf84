/* An elastic model: the layers of a plan run while the weights of later ones are read (pipeline.c). */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "elastic.h"

static void walk_stage(struct pliant_model *model, uint32_t form, uint32_t tables_of, const struct slice *slices,
                       uint32_t n_tokens) {
    struct engine *engine = model->kind;
    const struct elastic *data = engine->data;
    void *spaces[SPACE_TABLES + MOST_TABLES] = {
        [SPACE_ARENA] = engine->arena, [SPACE_HIDDEN] = engine->arena + data->hidden_at,
        [SPACE_BLOCKS] = engine->blocks, [SPACE_IDS] = model->ids, [SPACE_TYPES] = model->types,
        [SPACE_WORDS] = engine->words, [SPACE_SLICES] = (void *)slices, [SPACE_ANSWER] = engine->answer,
        [SPACE_SUMS] = sums_of(engine, tables_of),
    };
    for (uint32_t i = 0; i < data->n_linears; i++)
        spaces[data->linears[i].space] = &engine->linears[i];
    for (uint32_t i = 0; i < MOST_TABLES; i++)
        spaces[SPACE_TABLES + i] = model->tables + data->places[tables_of * MOST_TABLES + i];
    stage_walk(&engine->stages[form], &model->pool, spaces, n_tokens);
}

static int embed(struct pliant_model *model, uint32_t n_tokens, struct pliant_error *error) {
    struct engine *engine = model->kind;
    int code = words_read(&engine->data->words, engine->words_file, model->ids, n_tokens, engine->words, error);
    for (uint32_t i = 0; i < n_tokens; i++) /* of what was read */
        model->ids[i] = (int32_t)i;
    uint32_t n_blocks = (n_tokens + engine->data->block_rows - 1) / engine->data->block_rows;
    for (uint32_t b = 0; b < n_blocks; b++) { /* as text_blocks of kernels/attention has it, of one text */
        int64_t block[] = {0, n_tokens, 0, 0};
        memcpy(engine->blocks + 4 * b, block, sizeof block);
    }
    if (!code)
        walk_stage(model, 0, engine->data->n_layers, NULL, n_tokens);
    return code;
}

static int compute(struct pliant_model *model, const struct step *step, uint32_t n_tokens,
                   struct pliant_answer *answer) {
    struct engine *engine = model->kind;
    if (step->work == WORK_EMBED)
        return embed(model, n_tokens, &answer->error);
    if (step->work == WORK_HEAD) {
        walk_stage(model, 1, engine->data->n_layers, NULL, n_tokens);
        memcpy(model->numbers, engine->answer, model->about.n_numbers * sizeof *model->numbers);
        return PLIANT_OK;
    }
    const struct slice *slices = engine->slices + step->layer * engine->data->n_slices;
    walk_stage(model, step->form, step->layer, slices, n_tokens);
    return PLIANT_OK;
}

/* The largest target within the one that is asked for, among the plans for inputs as long. */
static const struct plan *choose(const struct elastic *data, uint32_t n_tokens, uint64_t target_us, int best_effort) {
    const struct plan *chosen = NULL;
    uint32_t length = 0;
    for (uint32_t i = 0; i < data->n_plans; i++) { /* in rising order of length, then of target */
        const struct plan *plan = &data->plans[i];
        if (plan->n_tokens < n_tokens || (length && plan->n_tokens != length))
            continue;
        length = plan->n_tokens;
        int fits = !target_us || (plan->target_us <= target_us && plan->meets);
        if (fits || (best_effort && !chosen))
            chosen = plan;
    }
    return chosen;
}

static int no_plan(const struct elastic *data, uint32_t n_tokens, uint64_t target_us, struct pliant_error *error) {
    const struct plan *least = choose(data, n_tokens, 0, 0);
    for (uint32_t i = 0; i < data->n_plans; i++)
        if (data->plans[i].n_tokens == least->n_tokens && data->plans[i].meets &&
            (!least->meets || data->plans[i].target_us < least->target_us))
            least = &data->plans[i];
    if (!least->meets)
        return fail(error, PLIANT_TARGET, "no target that was planned for is met by %u tokens: the quickest plan "
                    "takes %llu us; set best_effort, or compile with a larger --latency", n_tokens,
                    (unsigned long long)least->predicted_us);
    return fail(error, PLIANT_TARGET, "no plan answers %u tokens within %llu us: the least target is %llu us; ask "
                "for that, or compile with a smaller --latency", n_tokens, (unsigned long long)target_us,
                (unsigned long long)least->target_us);
}

int kind_run(struct pliant_model *model, uint32_t n_tokens, uint64_t target_us, struct pliant_answer *answer) {
    struct engine *engine = model->kind;
    const struct elastic *data = engine->data;
    struct run *run = &engine->run;
    const struct plan *plan = choose(data, n_tokens, target_us, model->best_effort);
    if (!plan)
        return no_plan(data, n_tokens, target_us, &answer->error);
    if (answer->bits)
        memset(answer->bits, 0, data->n_layers * data->n_slices);
    pipeline_begin(engine, plan);
    pthread_mutex_lock(&engine->reader.lock);
    for (uint32_t i = 0; i < plan->n_steps && !run->code; i++) {
        const struct step *step = &plan->steps[i];
        if (step->work == WORK_LOAD)
            continue;
        pipeline_await(engine, step);
        if (run->code)
            break;
        run->started[i] = 1;
        if (step->work == WORK_LAYER)
            pipeline_set_bits(engine, step->layer, plan->width, model->tables, answer->bits);
        pthread_mutex_unlock(&engine->reader.lock);
        int code = compute(model, step, n_tokens, answer);
        pthread_mutex_lock(&engine->reader.lock);
        if (code) {
            run->code = code;
            run->error = answer->error;
        }
        run->done[i] = 1;
        pthread_cond_broadcast(&engine->reader.ended);
    }
    int code = run->code;
    if (code)
        answer->error = run->error;
    run->is_left = 1;
    answer->read_bytes = run->read_bytes;
    pthread_cond_broadcast(&engine->reader.ended);
    pthread_mutex_unlock(&engine->reader.lock);
    answer->n_layers = plan->n_layers;
    answer->width = plan->width;
    answer->target_us = plan->target_us;
    answer->predicted_us = plan->predicted_us;
    return code;
}

static int read_preload(struct engine *engine, struct pliant_error *error) {
    const struct elastic *data = engine->data;
    unsigned char *bounce = aligned(data->bounce_bytes), *to = engine->preload;
    int code = bounce ? PLIANT_OK : fail(error, PLIANT_MEMORY, "no memory to read the preload buffer");
    for (uint32_t i = 0; !code && i < data->n_preload; i++) {
        const struct extent *extent = &data->preload[i];
        code = pipeline_read(engine, extent, bounce, error);
        for (uint32_t p = 0; !code && p < extent->n_pieces; p++) {
            const struct piece *piece = &data->pieces[extent->first_piece + p];
            uint64_t n_bytes = piece->count * (uint64_t)data->slice_bytes[piece->part];
            memcpy(to, bounce + piece->start, n_bytes);
            pipeline_place(engine, piece, to);
            to += (n_bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
        }
    }
    give_back(bounce, data->bounce_bytes);
    return code;
}

static int open_files(struct engine *engine, const char *directory, struct pliant_error *error) {
    const struct elastic *data = engine->data;
    int cached = 0;
    engine->is_direct = 1;
    for (uint32_t i = 0; i < data->n_layers; i++)
        if (data->layer_files[i].name &&
            (engine->files[i] = file_open(directory, &data->layer_files[i], &engine->is_direct, error)) < 0)
            return PLIANT_FILE;
    engine->words_file = file_open(directory, &data->words.file, &cached, error);
    return engine->words_file < 0 ? PLIANT_FILE : PLIANT_OK;
}

static void describe_weights(struct engine *engine, const unsigned char *tables) {
    const struct elastic *data = engine->data;
    for (uint32_t i = 0; i < data->n_layers * data->n_slices; i++) {
        const uint64_t *at = data->outliers + i / data->n_slices * 3;
        const uint32_t *rows = (const uint32_t *)(tables + at[0]);
        engine->slices[i].outlier_rows = rows + i % data->n_slices * data->outlier_columns;
        engine->slices[i].outlier_offsets = tables + at[1];
        engine->slices[i].outlier_values = tables + at[2];
    }
    for (uint32_t i = 0; i < data->n_linears; i++) {
        engine->linears[i].bits = 32;
        engine->linears[i].full = tables + data->linears[i].packed;
        engine->linears[i].outlier_rows = tables + data->linears[i].rows;
    }
}

int kind_open(struct pliant_model *model, const char *directory, struct pliant_error *error) {
    const struct elastic *data = model->data->kind;
    struct engine *engine = model->kind = calloc(1, sizeof *engine);
    if (!engine)
        return fail(error, PLIANT_MEMORY, "no memory for the model");
    engine->data = data;
    uint64_t n = data->n_layers * data->n_slices, n_tokens = model->about.most_tokens;
    for (uint32_t i = 0; i < data->n_plans; i++)
        if (data->plans[i].n_steps > engine->most_steps)
            engine->most_steps = data->plans[i].n_steps;
    engine->stages = calloc(data->n_forms, sizeof *engine->stages);
    engine->slices = calloc(n, sizeof *engine->slices);
    engine->blocks = calloc(4 * n_tokens, sizeof *engine->blocks);
    engine->files = malloc(data->n_layers * sizeof *engine->files);
    engine->run.done = calloc(2 * ((uint64_t)engine->most_steps + n), 1);
    engine->preload = aligned(data->preload_bytes);
    engine->ring = aligned(data->ring_bytes);
    engine->arena = aligned(data->arena_bytes);
    engine->words = aligned(n_tokens * data->words.row_bytes);
    engine->answer = aligned(data->n_answer * sizeof *engine->answer);
    engine->words_file = -1;
    if (engine->files)
        memset(engine->files, -1, data->n_layers * sizeof *engine->files);
    if (!engine->stages || !engine->slices || !engine->blocks || !engine->files || !engine->run.done ||
        !engine->preload || !engine->ring || !engine->arena || !engine->words || !engine->answer)
        return fail(error, PLIANT_MEMORY, "no memory for %llu bytes of weights and activations",
                    (unsigned long long)(data->preload_bytes + data->ring_bytes + data->arena_bytes));
    engine->run.started = engine->run.done + engine->most_steps;
    engine->run.arrived = engine->run.started + engine->most_steps;
    engine->run.summed = engine->run.arrived + n;
    for (uint32_t i = 0; i < data->n_forms; i++)
        if (stage_open(&engine->stages[i], &data->forms[i]))
            return fail(error, PLIANT_MEMORY, "no memory for the kernels' arguments");
    describe_weights(engine, model->tables);
    int code = open_files(engine, directory, error);
    model->about.is_direct = engine->is_direct;
    if (!code)
        code = read_preload(engine, error);
    if (!code)
        code = pool_open(&model->pool, model->n_threads, data->scratch_bytes, error);
    return code ? code : pipeline_open(engine, error);
}

void kind_close(struct pliant_model *model) {
    struct engine *engine = model->kind;
    if (!engine)
        return;
    const struct elastic *data = engine->data;
    pipeline_close(engine);
    for (uint32_t i = 0; engine->files && i < data->n_layers; i++)
        if (engine->files[i] >= 0)
            close(engine->files[i]);
    if (engine->words_file >= 0)
        close(engine->words_file);
    for (uint32_t i = 0; engine->stages && i < data->n_forms; i++)
        stage_close(&engine->stages[i]);
    give_back(engine->preload, data->preload_bytes);
    give_back(engine->ring, data->ring_bytes);
    give_back(engine->arena, data->arena_bytes);
    give_back(engine->words, model->about.most_tokens * data->words.row_bytes);
    give_back(engine->answer, data->n_answer * sizeof *engine->answer);
    free(engine->stages);
    free(engine->slices);
    free(engine->blocks);
    free(engine->files);
    free(engine->run.done);
    free(engine);
}
