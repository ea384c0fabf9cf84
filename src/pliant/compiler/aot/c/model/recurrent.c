/* A recurrent model: words' vectors in, one walk over as many steps as the text has words. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "recurrent.h"

struct engine {
    const struct recurrent *data;
    struct stage stage;
    unsigned char *arena, *rows;
    float *vectors, *states;
    int file;
};

static float from_half(uint16_t half) {
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, exponent = half >> 10 & 0x1F, fraction = half & 0x3FF, bits;
    if (exponent == 0x1F) {
        bits = sign | 0x7F800000 | fraction << 13;
    } else if (exponent) {
        bits = sign | (exponent + 112) << 23 | fraction << 13;
    } else {
        float tiny = (float)fraction * 0x1p-24f;
        return sign ? -tiny : tiny;
    }
    float number;
    memcpy(&number, &bits, sizeof number);
    return number;
}

static void widen(const struct engine *engine, uint32_t n_tokens) {
    size_t n = (size_t)n_tokens * engine->data->n_inputs;
    const uint16_t *halves = (const uint16_t *)engine->rows;
    if (!engine->data->is_half)
        memcpy(engine->vectors, engine->rows, n * sizeof *engine->vectors);
    for (size_t i = 0; engine->data->is_half && i < n; i++)
        engine->vectors[i] = from_half(halves[i]);
}

int kind_run(struct pliant_model *model, uint32_t n_tokens, uint64_t target_us, struct pliant_answer *answer) {
    struct engine *engine = model->kind;
    (void)target_us; /* there is one way to answer */
    int code = words_read(&engine->data->words, engine->file, model->ids, n_tokens, engine->rows, &answer->error);
    if (code)
        return code;
    widen(engine, n_tokens);
    void *spaces[SPACE_TABLES + MOST_TABLES] = {
        [SPACE_ARENA] = engine->arena, [SPACE_WORDS] = engine->vectors, [SPACE_HIDDEN] = engine->states,
        [SPACE_ANSWER] = model->numbers, [SPACE_TABLES] = model->tables,
    };
    stage_walk(&engine->stage, &model->pool, spaces, n_tokens);
    return PLIANT_OK;
}

static uint64_t floats(const struct pliant_model *model, uint32_t n) { return 4ull * model->about.most_tokens * n; }

int kind_open(struct pliant_model *model, const char *directory, struct pliant_error *error) {
    const struct recurrent *data = model->data->kind;
    struct engine *engine = model->kind = calloc(1, sizeof *engine);
    if (!engine)
        return fail(error, PLIANT_MEMORY, "no memory for the model");
    int is_direct = 0;
    engine->data = data;
    engine->arena = aligned(data->arena_bytes);
    engine->rows = aligned(model->about.most_tokens * data->words.row_bytes);
    engine->vectors = aligned(floats(model, data->n_inputs));
    engine->states = aligned(floats(model, data->width));
    engine->file = file_open(directory, &data->words.file, &is_direct, error);
    if (engine->file < 0)
        return PLIANT_FILE;
    if (!engine->arena || !engine->rows || !engine->vectors || !engine->states ||
        stage_open(&engine->stage, data->forms))
        return fail(error, PLIANT_MEMORY, "no memory for inputs of %u words", model->about.most_tokens);
    return pool_open(&model->pool, model->n_threads, data->scratch_bytes, error);
}

void kind_close(struct pliant_model *model) {
    struct engine *engine = model->kind;
    if (!engine)
        return;
    stage_close(&engine->stage);
    give_back(engine->arena, engine->data->arena_bytes);
    give_back(engine->rows, model->about.most_tokens * engine->data->words.row_bytes);
    give_back(engine->vectors, floats(model, engine->data->n_inputs));
    give_back(engine->states, floats(model, engine->data->width));
    if (engine->file >= 0)
        close(engine->file);
    free(engine);
}
