/* From UTF-8 to ids: added tokens, words, pieces of words. The same as the tokenizers library gives. */
#include <stdlib.h>
#include <string.h>
#include "text.h"

enum { WORD, SPACE, PUNCTUATION };
enum { REPLACEMENT = 0xFFFD };

static const uint32_t FNV_START = 2166136261u, FNV_STEP = 16777619u;

static uint32_t hashed(uint32_t hash, const unsigned char *bytes, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        hash = (hash ^ bytes[i]) * FNV_STEP;
    return hash;
}

static void add(struct ids *ids, int32_t id) {
    if (ids->n < ids->room)
        ids->ids[ids->n] = id;
    ids->n++;
}

/* The id of `prefix` and `n` bytes behind it, whose hash is known; -1 where there is none. */
static int32_t look_up(const struct text *text, const char *prefix, const unsigned char *bytes, uint32_t n,
                       uint32_t hash) {
    const struct text_model *model = text->model;
    const uint32_t *slots = (const uint32_t *)(text->tables + model->slots);
    const uint32_t *words = (const uint32_t *)(text->tables + model->words);
    const unsigned char *pool = text->tables + model->pool;
    uint32_t n_prefix = (uint32_t)strlen(prefix), mask = model->n_slots - 1;
    for (uint32_t at = hash & mask; slots[at]; at = (at + 1) & mask) {
        uint32_t id = slots[at] - 1;
        const unsigned char *word = pool + words[id];
        if (words[id + 1] - words[id] == n_prefix + n && !memcmp(word, prefix, n_prefix) &&
            !memcmp(word + n_prefix, bytes, n))
            return (int32_t)id;
    }
    return -1;
}

static int is_first_byte(unsigned char byte) { return (byte & 0xC0) != 0x80; }

/* The longest piece that begins a rest of a word, and its bytes. */
static int32_t longest(const struct text *text, const char *prefix, const unsigned char *rest, uint32_t n,
                       uint32_t *taken) {
    uint32_t hash = hashed(FNV_START, (const unsigned char *)prefix, (uint32_t)strlen(prefix));
    int32_t found = -1;
    for (uint32_t end = 0; end < n && end < text->model->most_bytes;) {
        uint32_t begin = end++;
        while (end < n && !is_first_byte(rest[end]))
            end++;
        hash = hashed(hash, rest + begin, end - begin);
        int32_t id = look_up(text, prefix, rest, end, hash);
        if (id >= 0) {
            found = id;
            *taken = end;
        }
    }
    return found;
}

static void end_word(struct scan *scan) {
    const struct text_model *model = scan->text->model;
    uint32_t n = scan->n_bytes, first = scan->ids->n, at = 0;
    if (!scan->n_chars)
        return;
    int is_known = n <= WORD_BYTES && !(model->is_word_piece && scan->n_chars > model->most_chars);
    if (is_known && !model->is_word_piece) {
        int32_t id = look_up(scan->text, "", scan->word, n, hashed(FNV_START, scan->word, n));
        is_known = id >= 0;
        if (is_known)
            add(scan->ids, id);
    }
    while (is_known && model->is_word_piece && at < n) {
        uint32_t taken = 0;
        int32_t id = longest(scan->text, at ? model->prefix : "", scan->word + at, n - at, &taken);
        is_known = id >= 0;
        if (is_known)
            add(scan->ids, id);
        at += taken;
    }
    if (!is_known) {
        scan->ids->n = first;
        add(scan->ids, model->unknown);
    }
    scan->n_bytes = scan->n_chars = 0;
}

static uint32_t utf8(uint32_t c, unsigned char *to) {
    if (c < 0x80) {
        to[0] = (unsigned char)c;
        return 1;
    }
    uint32_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (uint32_t i = n; i-- > 1; c >>= 6)
        to[i] = (unsigned char)(0x80 | (c & 0x3F));
    to[0] = (unsigned char)((n == 2 ? 0xC0 : n == 3 ? 0xE0 : 0xF0) | c);
    return n;
}

void text_point(struct scan *scan, uint32_t c) {
    int class = text_record(scan->text, c)->class;
    if (class != WORD)
        end_word(scan);
    if (class == SPACE)
        return;
    unsigned char bytes[4];
    uint32_t n = utf8(c, bytes);
    if (scan->n_bytes + n <= WORD_BYTES) {
        memcpy(scan->word + scan->n_bytes, bytes, n);
        scan->n_bytes += n;
    } else {
        scan->n_bytes = WORD_BYTES + 1;
    }
    scan->n_chars++;
    if (class == PUNCTUATION)
        end_word(scan);
}

/* One code point of UTF-8, or U+FFFD for the longest beginning of one that is cut or wrong. */
static uint32_t decode(const unsigned char *bytes, size_t n, size_t *taken) {
    unsigned char lead = bytes[0];
    uint32_t more = lead < 0x80 ? 0 : lead < 0xC2 || lead > 0xF4 ? 9 : lead < 0xE0 ? 1 : lead < 0xF0 ? 2 : 3;
    *taken = 1;
    if (!more)
        return lead;
    if (more == 9)
        return REPLACEMENT;
    unsigned char low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
    unsigned char high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
    uint32_t c = lead & (0x3Fu >> more);
    for (uint32_t i = 1; i <= more; i++, low = 0x80, high = 0xBF) {
        if (i >= n || bytes[i] < low || bytes[i] > high)
            return REPLACEMENT;
        c = c << 6 | (bytes[i] & 0x3F);
        *taken = i + 1;
    }
    return c;
}

static int begins(const unsigned char *bytes, size_t n, const char *with) {
    size_t length = strlen(with);
    return length && length <= n && !memcmp(bytes, with, length);
}

static void end_segment(struct scan *scan) {
    normalize_end(scan);
    end_word(scan);
}

static void read_points(struct scan *scan, const unsigned char *bytes, size_t n) {
    for (size_t at = 0, taken = 0; at < n; at += taken)
        normalize(scan, decode(bytes + at, n - at, &taken));
}

static void read_bytes(struct scan *scan, const unsigned char *bytes, size_t n) {
    const struct text_model *model = scan->text->model;
    for (size_t at = 0, taken = 0; at < n && !scan->is_short && scan->ids->n <= scan->ids->most; at += taken) {
        uint32_t i = 0;
        while (i < model->n_added && !begins(bytes + at, n - at, model->added[i].content))
            i++;
        if (i < model->n_added) {
            end_segment(scan);
            add(scan->ids, model->added[i].id);
            taken = strlen(model->added[i].content);
        } else if (model->replaced && begins(bytes + at, n - at, model->replaced)) {
            read_points(scan, (const unsigned char *)model->replacement, strlen(model->replacement));
            taken = strlen(model->replaced);
        } else {
            normalize(scan, decode(bytes + at, n - at, &taken));
        }
    }
    end_segment(scan);
}

int text_encode(const struct text *text, const unsigned char *bytes, size_t n, struct ids *ids,
                struct pliant_error *error) {
    const struct text_model *model = text->model;
    struct scan scan;
    memset(&scan, 0, offsetof(struct scan, own));
    scan.text = text;
    scan.ids = ids;
    scan.decomposes = model->decomposes;
    scan.composes = model->composes;
    scan.marks = scan.own;
    scan.room = scan.own + MOST_MARKS;
    scan.most_marks = MOST_MARKS;
    scan.n_marks = scan.n_bytes = scan.n_chars = 0;
    for (uint32_t i = 0; i < model->n_before; i++)
        add(ids, model->before[i]);
    read_bytes(&scan, bytes, n);
    int is_empty = ids->n == model->n_before;
    for (uint32_t i = 0; i < model->n_after; i++)
        add(ids, model->after[i]);
    if (scan.marks != scan.own)
        free(scan.marks);
    if (scan.is_short)
        return fail(error, PLIANT_MEMORY, "no memory for a text with so many marks in a row");
    if (is_empty)
        return fail(error, PLIANT_EMPTY, "the text holds no token the model knows: give at least one word");
    return PLIANT_OK;
}

int text_open(struct text *text, const struct text_model *model, const char *directory,
              struct pliant_error *error) {
    text->model = model;
    text->tables = file_load(directory, &model->file, error);
    return text->tables ? PLIANT_OK : PLIANT_FILE;
}

void text_close(struct text *text) {
    if (text->tables)
        give_back(text->tables, text->model->file.n_bytes);
}
