/* A text on its way to ids: bytes, code points (normalize.c), words, ids (text.c). */
#ifndef PLIANT_TEXT_H
#define PLIANT_TEXT_H

#include "runtime.h"

enum { MOST_MARKS = 64, MOST_MARKS_IN_A_ROW = 1 << 16, WORD_BYTES = 1024 };

struct added { const char *content; int32_t id; };
struct record { uint8_t first, combining, class, unused; uint32_t decomposed, folded; };
struct mark { uint32_t point, class; };

struct scan {
    const struct text *text;
    struct ids *ids;
    int decomposes, composes, is_short; /* is_short: memory ran out */
    struct mark own[2 * MOST_MARKS], *marks, *room; /* a starter and marks behind it; as many to sort them */
    uint32_t n_marks, most_marks;
    unsigned char word[WORD_BYTES]; /* what is kept of a word: no longer one is known */
    uint32_t n_bytes, n_chars;
};

const struct record *text_record(const struct text *text, uint32_t c);
/* A code point as it was decoded; `text_point` gets those that become of it, some of them later. */
void normalize(struct scan *scan, uint32_t c);
void normalize_end(struct scan *scan);
void text_point(struct scan *scan, uint32_t c);

#endif
