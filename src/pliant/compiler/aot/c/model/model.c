/* The functions of pliant_model.h that are the same for every kind of model. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "runtime.h"

static int open_parts(struct pliant_model *model, const char *directory, const struct pliant_options *options,
                      struct pliant_error *error) {
    const struct model_data *data = model->data;
    int code = PLIANT_OK;
    const char *missing = processor_lacks();
    if (missing)
        return fail(error, PLIANT_PROCESSOR, "the kernels use %s, which this processor or system does not have: "
                    "compile the model with another --target", missing);
    if (options && options->n_threads < 0)
        return fail(error, PLIANT_ARGUMENT, "n_threads is %d: give 1 or more, or 0", options->n_threads);
    if (data->manifest)
        code = check_manifest(directory, data->manifest, data->identity, data->newest_version, error);
    if (code)
        return code;
    uint64_t n = data->about.most_tokens;
    model->ids = calloc(2 * n, sizeof *model->ids);
    model->numbers = calloc(data->about.n_numbers, sizeof *model->numbers);
    if (!model->ids || !model->numbers)
        return fail(error, PLIANT_MEMORY, "no memory for an input of %llu tokens", (unsigned long long)n);
    model->types = model->ids + n;
    model->tables = file_load(directory, &data->tables, error);
    if (!model->tables)
        return PLIANT_FILE;
    if (data->text)
        code = text_open(&model->text, data->text, directory, error);
    return code ? code : kind_open(model, directory, error);
}

struct pliant_model *pliant_model_open(const char *directory, const struct pliant_options *options,
                                       struct pliant_error *error) {
    struct pliant_error own;
    error = error ? error : &own;
    memset(error, 0, sizeof *error);
    struct pliant_model *model = directory ? calloc(1, sizeof *model) : NULL;
    if (!model) {
        fail(error, directory ? PLIANT_MEMORY : PLIANT_ARGUMENT,
             directory ? "no memory for the model" : "the directory is null");
        return NULL;
    }
    model->data = &PLIANT_DATA;
    model->about = PLIANT_DATA.about;
    model->n_threads = options && options->n_threads ? options->n_threads : PLIANT_DATA.n_threads;
    model->best_effort = options && options->best_effort;
    pthread_mutex_init(&model->lock, NULL);
    if (!open_parts(model, directory, options, error)) {
        uint64_t each = model->about.scratch_bytes / (uint64_t)PLIANT_DATA.n_threads;
        model->about.scratch_bytes = each * (uint64_t)model->n_threads;
        return model;
    }
    pliant_model_close(model);
    return NULL;
}

void pliant_model_close(struct pliant_model *model) {
    if (!model)
        return;
    kind_close(model);
    pool_close(&model->pool);
    text_close(&model->text);
    give_back(model->tables, model->data->tables.n_bytes);
    pthread_mutex_destroy(&model->lock);
    free(model->ids);
    free(model->numbers);
    free(model);
}

const struct pliant_about *pliant_model_about(const struct pliant_model *model) {
    return model ? &model->about : NULL;
}

static int too_long(const struct pliant_model *model, uint32_t n_tokens, struct pliant_error *error) {
    return fail(error, PLIANT_TOO_LONG, "the input is at least %u tokens long, special tokens included, but the "
                "library takes %u: shorten it, or compile the model with a larger --length", n_tokens,
                model->about.most_tokens);
}

/* The lock is held, and the ids are in the model. */
static int run(struct pliant_model *model, uint32_t n_tokens, uint64_t target_us, struct pliant_answer *answer) {
    answer->n_tokens = n_tokens;
    for (uint32_t i = 0; i < n_tokens; i++)
        if ((uint32_t)model->ids[i] >= model->data->vocab)
            return fail(&answer->error, PLIANT_ARGUMENT, "token %u of the text has the id %d, but the model has %u "
                        "embeddings: compile with the tokenizer it was trained with", i, model->ids[i],
                        model->data->vocab);
        else if (model->ids[i] == model->data->padding)
            return fail(&answer->error, PLIANT_ARGUMENT, "token %u of the input is padding (id %d), which has no "
                        "position: leave it out", i, model->ids[i]);
    int code = kind_run(model, n_tokens, target_us, answer);
    if (code)
        return code;
    uint32_t n = model->about.n_numbers, best = 0;
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += (double)model->numbers[i] * model->numbers[i];
    for (uint32_t i = 0; model->data->is_normalized && i < n; i++)
        model->numbers[i] /= (float)fmax(sqrt(sum), 1e-12);
    for (uint32_t i = 1; i < n; i++)
        best = model->numbers[i] > model->numbers[best] ? i : best;
    answer->label_index = -1;
    if (model->about.n_labels) {
        sum = 0;
        for (uint32_t i = 0; i < n; i++)
            sum += exp((double)model->numbers[i] - model->numbers[best]);
        answer->label_index = (int)best;
        answer->label = model->about.labels[best];
        answer->score = (float)(n > 1 ? 1 / sum : 1 / (1 + exp(-(double)model->numbers[0])));
    }
    if (answer->numbers)
        memcpy(answer->numbers, model->numbers, n * sizeof *answer->numbers);
    return PLIANT_OK;
}

static void clear(struct pliant_answer *answer) {
    struct pliant_answer cleared = {.numbers = answer->numbers, .bits = answer->bits, .label_index = -1};
    *answer = cleared;
}

static int ended(struct pliant_answer *answer, uint64_t start_us, uint64_t target_us, int code) {
    answer->elapsed_us = now_us() - start_us;
    answer->met = !code && (!target_us || answer->elapsed_us <= target_us);
    return code;
}

static int encode(const struct pliant_model *model, const char *text, size_t n_bytes, struct ids *ids,
                  struct pliant_error *error) {
    if (!model->data->text)
        return fail(error, PLIANT_NO_TEXT, "this library has no tokenizer: give ids");
    return text_encode(&model->text, (const unsigned char *)text, n_bytes, ids, error);
}

int pliant_model_run(struct pliant_model *model, const char *text, uint64_t target_us,
                     struct pliant_answer *answer) {
    if (!answer)
        return PLIANT_ARGUMENT;
    uint64_t start_us = now_us();
    clear(answer);
    if (!model || !text)
        return fail(&answer->error, PLIANT_ARGUMENT, "the %s is null", model ? "text" : "model");
    pthread_mutex_lock(&model->lock);
    struct ids ids = {model->ids, 0, model->about.most_tokens, model->about.most_tokens};
    int code = encode(model, text, strlen(text), &ids, &answer->error);
    if (!code && ids.n > ids.room)
        code = too_long(model, ids.n, &answer->error);
    if (!code) {
        memset(model->types, 0, ids.n * sizeof *model->types);
        code = run(model, ids.n, target_us, answer);
    }
    pthread_mutex_unlock(&model->lock);
    return ended(answer, start_us, target_us, code);
}

static int check_ids(const struct pliant_model *model, const int32_t *ids, const int32_t *types, uint32_t n,
                     struct pliant_error *error) {
    if (!ids || !n)
        return fail(error, PLIANT_ARGUMENT, "there are no ids: give at least one");
    if (n > model->about.most_tokens)
        return too_long(model, n, error);
    int32_t n_types = model->data->n_types ? (int32_t)model->data->n_types : 1;
    for (uint32_t i = 0; i < n; i++) {
        if (ids[i] < 0 || (uint32_t)ids[i] >= model->data->vocab)
            return fail(error, PLIANT_ARGUMENT, "token id %d, number %u of the input, is none of 0 to %u", ids[i],
                        i, model->data->vocab - 1);
        if (types && (types[i] < 0 || types[i] >= n_types))
            return fail(error, PLIANT_ARGUMENT, "token type %d, number %u of the input, is none of 0 to %d",
                        types[i], i, n_types - 1);
    }
    return PLIANT_OK;
}

int pliant_model_run_ids(struct pliant_model *model, const int32_t *ids, const int32_t *types,
                         uint32_t n_tokens, uint64_t target_us, struct pliant_answer *answer) {
    if (!answer)
        return PLIANT_ARGUMENT;
    uint64_t start_us = now_us();
    clear(answer);
    if (!model)
        return fail(&answer->error, PLIANT_ARGUMENT, "the model is null");
    int code = check_ids(model, ids, types, n_tokens, &answer->error);
    if (code)
        return ended(answer, start_us, target_us, code);
    pthread_mutex_lock(&model->lock);
    memcpy(model->ids, ids, n_tokens * sizeof *ids);
    memset(model->types, 0, n_tokens * sizeof *types);
    if (types)
        memcpy(model->types, types, n_tokens * sizeof *types);
    code = run(model, n_tokens, target_us, answer);
    pthread_mutex_unlock(&model->lock);
    return ended(answer, start_us, target_us, code);
}

int pliant_model_encode(struct pliant_model *model, const char *text, size_t n_bytes, int32_t *ids,
                        uint32_t room, uint32_t *n_tokens, struct pliant_error *error) {
    struct ids found = {ids, 0, ids ? room : 0, UINT32_MAX};
    if (error)
        memset(error, 0, sizeof *error);
    if (!model || !text || !n_tokens)
        return fail(error, PLIANT_ARGUMENT, "model, text or n_tokens is null");
    int code = encode(model, text, n_bytes, &found, error);
    *n_tokens = found.n;
    return code;
}
