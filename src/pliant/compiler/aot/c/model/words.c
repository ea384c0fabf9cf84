/* Rows of a table of words' vectors, read when a text needs them: the table stays on the disk. */
#define _GNU_SOURCE
#include <fcntl.h>
#include "runtime.h"

int words_read(const struct word_table *table, int file, const int32_t *ids, uint32_t n, unsigned char *to,
               struct pliant_error *error) {
    uint64_t size = table->row_bytes;
    for (uint32_t i = 0; i < n; i++) /* rows that are not in the page cache come together */
        posix_fadvise(file, (off_t)(table->rows + (uint64_t)ids[i] * size), (off_t)size, POSIX_FADV_WILLNEED);
    for (uint32_t i = 0; i < n; i++, to += size) {
        uint64_t id = (uint64_t)ids[i], hash;
        int code = file_read(file, table->file.name, to, size, table->rows + id * size, error);
        if (!code)
            code = file_read(file, table->file.name, &hash, sizeof hash, table->hashes + id * sizeof hash, error);
        if (!code && xxh3_64(to, size) != hash)
            code = fail(error, PLIANT_DAMAGED, "%s is damaged: row %d of the word table; copy it again",
                        table->file.name, ids[i]);
        if (code)
            return code;
    }
    return PLIANT_OK;
}
