/* Files of the model's directory: sizes and content are checked, errors say what to do. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>
#include "runtime.h"

enum { MOST_PATH = 4096 };

int fail(struct pliant_error *error, int code, const char *format, ...) {
    if (error) {
        va_list list;
        va_start(list, format);
        error->code = code;
        vsnprintf(error->message, sizeof error->message, format, list);
        va_end(list);
    }
    return code;
}

uint64_t now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

static uint64_t whole(uint64_t n_bytes) { return (n_bytes + BLOCK) / BLOCK * BLOCK; }

void *aligned(uint64_t n_bytes) {
    void *memory = mmap(NULL, whole(n_bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

void give_back(void *memory, uint64_t n_bytes) {
    if (memory)
        munmap(memory, whole(n_bytes));
}

static int open_path(const char *directory, const char *name, int flags, struct pliant_error *error) {
    char path[MOST_PATH];
    if (snprintf(path, sizeof path, "%s/%s", directory, name) >= (int)sizeof path) {
        fail(error, PLIANT_FILE, "the path of %s is longer than %d bytes", name, MOST_PATH);
        return -1;
    }
    int descriptor = open(path, O_RDONLY | O_CLOEXEC | flags);
    if (descriptor < 0 && !(flags && errno == EINVAL))
        fail(error, PLIANT_FILE, "%s of %.120s cannot be opened: %s; copy the whole directory", name,
             directory, strerror(errno));
    return descriptor;
}

static int lives_in_memory(int descriptor) {
    struct statfs about;
    return !fstatfs(descriptor, &about) && (about.f_type == 0x01021994 || about.f_type == (int)0x858458f6);
}

int file_open(const char *directory, const struct file *file, int *is_direct, struct pliant_error *error) {
    struct stat about;
    int descriptor = open_path(directory, file->name, *is_direct ? O_DIRECT : 0, error);
    if (descriptor < 0 && *is_direct && errno == EINVAL) {
        *is_direct = 0;
        descriptor = open_path(directory, file->name, 0, error);
    }
    if (descriptor < 0)
        return -1;
    if (*is_direct && lives_in_memory(descriptor))
        *is_direct = 0; /* reads go to memory: nothing is cold there */
    if (fstat(descriptor, &about) || (uint64_t)about.st_size != file->n_bytes) {
        fail(error, PLIANT_FILE, "%s of %.100s has %lld bytes, not %llu: it was cut or changed; copy it "
             "again", file->name, directory, (long long)about.st_size, (unsigned long long)file->n_bytes);
        close(descriptor);
        return -1;
    }
    return descriptor;
}

int file_read(int descriptor, const char *name, void *to, uint64_t n, uint64_t offset,
              struct pliant_error *error) {
    for (uint64_t done = 0; done < n;) {
        ssize_t got = pread(descriptor, (char *)to + done, n - done, (off_t)(offset + done));
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return fail(error, PLIANT_FILE, "%s cannot be read at byte %llu: %s", name,
                        (unsigned long long)(offset + done), strerror(errno));
        if (!got)
            return fail(error, PLIANT_FILE, "%s ends at byte %llu: it was cut while it is in use; copy it "
                        "again", name, (unsigned long long)(offset + done));
        done += (uint64_t)got;
    }
    return PLIANT_OK;
}

unsigned char *file_load(const char *directory, const struct file *file, struct pliant_error *error) {
    int is_direct = 0, descriptor = file_open(directory, file, &is_direct, error);
    if (descriptor < 0)
        return NULL;
    unsigned char *data = aligned(file->n_bytes);
    int code = data ? file_read(descriptor, file->name, data, file->n_bytes, 0, error)
                    : fail(error, PLIANT_MEMORY, "no memory for the %llu bytes of %s",
                           (unsigned long long)file->n_bytes, file->name);
    close(descriptor);
    if (!code && xxh3_64(data, file->n_bytes) != file->xxh3)
        code = fail(error, PLIANT_DAMAGED, "%s of %.120s is damaged: its XXH3 is not what was written; copy it "
                    "again", file->name, directory);
    if (code) {
        give_back(data, file->n_bytes);
        return NULL;
    }
    return data;
}

/* The text behind `"key":` in a manifest that pliant wrote; null where there is none. */
static const char *value_of(const char *text, const char *key) {
    char quoted[32];
    snprintf(quoted, sizeof quoted, "\"%s\":", key);
    const char *at = strstr(text, quoted);
    return at ? at + strlen(quoted) + strspn(at + strlen(quoted), " ") : NULL;
}

int check_manifest(const char *directory, const char *name, const char *identity, int newest,
                   struct pliant_error *error) {
    struct stat about;
    int descriptor = open_path(directory, name, 0, error);
    if (descriptor < 0)
        return PLIANT_FILE;
    char *text = NULL;
    int code = fstat(descriptor, &about) ? fail(error, PLIANT_FILE, "%s cannot be looked at", name) : PLIANT_OK;
    if (!code && !(text = calloc(1, (size_t)about.st_size + 1)))
        code = fail(error, PLIANT_MEMORY, "no memory for %s", name);
    if (!code)
        code = file_read(descriptor, name, text, (uint64_t)about.st_size, 0, error);
    close(descriptor);
    if (!code) {
        const char *version = value_of(text, "version"), *is = value_of(text, "identity");
        int number = version ? atoi(version) : 0;
        if (!version || !is)
            code = fail(error, PLIANT_VERSION, "%s of %.120s is no manifest of a store", name, directory);
        else if (number < 2 || number > newest)
            code = fail(error, PLIANT_VERSION, "%s of %.100s is of format version %d, this library reads 2 "
                        "to %d: compile the model again", name, directory, number, newest);
        else if (*is != '"' || strncmp(is + 1, identity, strlen(identity)))
            code = fail(error, PLIANT_VERSION, "the store in %.100s is not the one this library was compiled "
                        "from: compile the model again, or copy its own directory", directory);
    }
    free(text);
    return code;
}
