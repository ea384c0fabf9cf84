/* Code points of a text as its tokenizer has them: cleaned, decomposed, marks in order, composed, folded.

   Records of code points come from aot/model/character_tables.py. A starter and the marks behind it wait until
   the next starter, since marks are put in the order of their classes. */
#include <stdlib.h>
#include <string.h>
#include "text.h"

enum { KEPT, DROPPED, BLANK, APART };
enum { S_BASE = 0xAC00, L_BASE = 0x1100, V_BASE = 0x1161, T_BASE = 0x11A7, L_COUNT = 19, V_COUNT = 21, T_COUNT = 28,
       S_COUNT = L_COUNT * V_COUNT * T_COUNT, LAST = 0x10FFFF };

const struct record *text_record(const struct text *text, uint32_t c) {
    const struct text_model *model = text->model;
    const uint16_t *blocks = (const uint16_t *)(text->tables + model->blocks);
    const uint16_t *index = (const uint16_t *)(text->tables + model->index);
    return (const struct record *)(text->tables + model->records) + index[128u * blocks[c / 128] + c % 128];
}

static const uint32_t *sequence(const struct text *text, uint32_t at) {
    return (const uint32_t *)(text->tables + text->model->sequences) + at;
}

static void emit(struct scan *scan, uint32_t c) {
    uint32_t at = text_record(scan->text, c)->folded;
    if (!at) {
        text_point(scan, c);
        return;
    }
    const uint32_t *points = sequence(scan->text, at);
    for (uint32_t i = 1; i <= points[0]; i++)
        text_point(scan, points[i]);
}

static uint32_t composed(const struct text *text, uint32_t a, uint32_t b) {
    const struct pair { uint32_t first, second, composite; } *pairs;
    pairs = (const struct pair *)(text->tables + text->model->composed);
    if (a - L_BASE < L_COUNT && b - V_BASE < V_COUNT)
        return S_BASE + ((a - L_BASE) * V_COUNT + (b - V_BASE)) * T_COUNT;
    if (a - S_BASE < S_COUNT && (a - S_BASE) % T_COUNT == 0 && b - T_BASE - 1 < T_COUNT - 1)
        return a + (b - T_BASE);
    for (uint32_t low = 0, high = text->model->n_composed; low < high;) {
        uint32_t middle = (low + high) / 2;
        const struct pair *pair = &pairs[middle];
        if (pair->first == a && pair->second == b)
            return pair->composite;
        if (pair->first < a || (pair->first == a && pair->second < b))
            low = middle + 1;
        else
            high = middle;
    }
    return 0;
}

/* Marks behind a starter compose with it unless one of their class or a higher one stands between. */
static void compose(struct scan *scan) {
    struct mark *marks = scan->marks;
    uint32_t n = 0, before = 0;
    if (!scan->n_marks || marks[0].class)
        return;
    for (uint32_t i = 1; i < scan->n_marks; i++) {
        int is_blocked = n && before >= marks[i].class;
        uint32_t c = is_blocked ? 0 : composed(scan->text, marks[0].point, marks[i].point);
        if (c) {
            marks[0].point = c;
        } else {
            before = marks[i].class;
            marks[++n] = marks[i];
        }
    }
    scan->n_marks = n + 1;
}

/* In order of class, and of one class as they came. */
static void sort(struct scan *scan) {
    struct mark *marks = scan->marks;
    uint32_t first = scan->n_marks && !marks[0].class, n = scan->n_marks - first;
    struct mark *from = marks + first, *to = scan->room;
    int is_sorted = 1;
    for (uint32_t i = 1; i < n; i++)
        is_sorted &= from[i - 1].class <= from[i].class;
    if (is_sorted)
        return;
    uint32_t starts[257] = {0};
    for (uint32_t i = 0; i < n; i++)
        starts[from[i].class + 1]++;
    for (uint32_t k = 0; k < 256; k++)
        starts[k + 1] += starts[k];
    for (uint32_t i = 0; i < n; i++)
        to[starts[from[i].class]++] = from[i];
    memcpy(from, to, n * sizeof *to);
}

static void arrange(struct scan *scan) {
    sort(scan);
    if (scan->composes)
        compose(scan);
}

static void flush(struct scan *scan) {
    for (uint32_t i = 0; i < scan->n_marks; i++)
        emit(scan, scan->marks[i].point);
    scan->n_marks = 0;
}

static int grow(struct scan *scan) {
    uint32_t n = 2 * scan->most_marks;
    struct mark *marks = n > MOST_MARKS_IN_A_ROW ? NULL : malloc(2 * n * sizeof *marks);
    if (!marks)
        return 0;
    memcpy(marks, scan->marks, scan->n_marks * sizeof *marks);
    if (scan->marks != scan->own)
        free(scan->marks);
    scan->marks = marks;
    scan->room = marks + n;
    scan->most_marks = n;
    return 1;
}

static void decomposed(struct scan *scan, uint32_t c) {
    uint32_t class = text_record(scan->text, c)->combining;
    if (!class && scan->n_marks) {
        arrange(scan);
        const struct mark *starter = scan->marks; /* which may compose with the next one */
        int is_alone = scan->composes && scan->n_marks == 1 && !starter->class;
        uint32_t both = is_alone ? composed(scan->text, starter->point, c) : 0;
        if (both) {
            scan->marks->point = both;
            return;
        }
        flush(scan);
    }
    if (scan->n_marks == scan->most_marks && !grow(scan)) {
        scan->is_short = 1;
        return;
    }
    scan->marks[scan->n_marks++] = (struct mark){c, class};
}

static void kept(struct scan *scan, uint32_t c, const struct record *record) {
    if (!scan->decomposes) {
        emit(scan, c);
    } else if (c - S_BASE < S_COUNT) {
        uint32_t s = c - S_BASE;
        decomposed(scan, L_BASE + s / (V_COUNT * T_COUNT));
        decomposed(scan, V_BASE + s / T_COUNT % V_COUNT);
        if (s % T_COUNT)
            decomposed(scan, T_BASE + s % T_COUNT);
    } else if (!record->decomposed) {
        decomposed(scan, c);
    } else {
        const uint32_t *points = sequence(scan->text, record->decomposed);
        for (uint32_t i = 1; i <= points[0]; i++)
            decomposed(scan, points[i]);
    }
}

void normalize(struct scan *scan, uint32_t c) {
    const struct record *record = text_record(scan->text, c);
    if (record->first == DROPPED)
        return;
    if (record->first == KEPT) {
        kept(scan, c, record);
        return;
    }
    kept(scan, ' ', text_record(scan->text, ' '));
    if (record->first == APART) {
        kept(scan, c, record);
        kept(scan, ' ', text_record(scan->text, ' '));
    }
}

void normalize_end(struct scan *scan) {
    arrange(scan);
    flush(scan);
}
