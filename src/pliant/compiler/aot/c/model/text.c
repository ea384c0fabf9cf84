#include "runtime.h"
int text_open(struct text *text, const struct text_model *model, const char *directory, struct pliant_error *error) { (void)text;(void)model;(void)directory;(void)error; return 0; }
int text_encode(const struct text *text, const unsigned char *bytes, size_t n, struct ids *ids, struct pliant_error *error) {(void)text;(void)bytes;(void)n;(void)ids;(void)error; return 0;}
void text_close(struct text *text) {(void)text;}
