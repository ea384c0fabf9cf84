/* XXH3-64 without a seed, as the xxHash specification describes it: the hash of every slice that is read. */
#include <string.h>
#include "runtime.h"

#define P32_1 UINT64_C(0x9E3779B1)
#define P32_2 UINT64_C(0x85EBCA77)
#define P32_3 UINT64_C(0xC2B2AE3D)
#define P64_1 UINT64_C(0x9E3779B185EBCA87)
#define P64_2 UINT64_C(0xC2B2AE3D27D4EB4F)
#define P64_3 UINT64_C(0x165667B19E3779F9)
#define P64_4 UINT64_C(0x85EBCA77C2B2AE63)
#define P64_5 UINT64_C(0x27D4EB2F165667C5)
#define MX1 UINT64_C(0x165667919E3779F9)
#define MX2 UINT64_C(0x9FB21C651E98DF25)

enum { SECRET_BYTES = 192, STRIPE = 64, LANES = 8, STRIPES = (SECRET_BYTES - STRIPE) / 8 };

static const unsigned char SECRET[SECRET_BYTES] = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c,
    0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f,
    0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
    0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c,
    0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
    0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d,
    0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64,
    0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
    0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce,
    0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
};

static uint64_t read64(const unsigned char *p) { uint64_t x; memcpy(&x, p, 8); return x; }
static uint64_t read32(const unsigned char *p) { uint32_t x; memcpy(&x, p, 4); return x; }
static uint64_t rotate(uint64_t x, int n) { return x << n | x >> (64 - n); }
static uint64_t folded(uint64_t a, uint64_t b) {
    __extension__ typedef unsigned __int128 u128;
    u128 product = (u128)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}
static uint64_t avalanche(uint64_t h) {
    h = (h ^ h >> 37) * MX1;
    return h ^ h >> 32;
}
static uint64_t avalanche64(uint64_t h) {
    h = (h ^ h >> 33) * P64_2;
    h = (h ^ h >> 29) * P64_3;
    return h ^ h >> 32;
}

static uint64_t mix16(const unsigned char *p, const unsigned char *secret) {
    return folded(read64(p) ^ read64(secret), read64(p + 8) ^ read64(secret + 8));
}

static uint64_t short_hash(const unsigned char *p, size_t n) {
    if (n > 8) {
        uint64_t low = read64(p) ^ read64(SECRET + 24) ^ read64(SECRET + 32);
        uint64_t high = read64(p + n - 8) ^ read64(SECRET + 40) ^ read64(SECRET + 48);
        return avalanche(n + __builtin_bswap64(low) + high + folded(low, high));
    }
    if (n >= 4) {
        uint64_t h = (read32(p + n - 4) + (read32(p) << 32)) ^ read64(SECRET + 8) ^ read64(SECRET + 16);
        h ^= rotate(h, 49) ^ rotate(h, 24);
        h *= MX2;
        h ^= (h >> 35) + n;
        h *= MX2;
        return h ^ h >> 28;
    }
    if (n) {
        uint64_t word = (uint64_t)p[0] << 16 | (uint64_t)p[n >> 1] << 24 | p[n - 1] | (uint64_t)n << 8;
        return avalanche64(word ^ read32(SECRET) ^ read32(SECRET + 4));
    }
    return avalanche64(read64(SECRET + 56) ^ read64(SECRET + 64));
}

static uint64_t middle_hash(const unsigned char *p, size_t n) {
    uint64_t sum = n * P64_1;
    if (n <= 128) {
        for (size_t i = (n - 1) / 32 + 1; i-- > 0;)
            sum += mix16(p + 16 * i, SECRET + 32 * i) + mix16(p + n - 16 * (i + 1), SECRET + 32 * i + 16);
        return avalanche(sum);
    }
    for (size_t i = 0; i < 8; i++)
        sum += mix16(p + 16 * i, SECRET + 16 * i);
    sum = avalanche(sum);
    for (size_t i = 8; i < n / 16; i++)
        sum += mix16(p + 16 * i, SECRET + 16 * (i - 8) + 3);
    return avalanche(sum + mix16(p + n - 16, SECRET + 136 - 17));
}

static void accumulate(uint64_t *restrict sums, const unsigned char *restrict p,
                       const unsigned char *restrict secret) {
    uint64_t data[LANES], keyed[LANES];
    memcpy(data, p, STRIPE);
    memcpy(keyed, secret, STRIPE);
    for (int i = 0; i < LANES; i++)
        keyed[i] ^= data[i];
    for (int i = 0; i < LANES; i++)
        sums[i] += data[i ^ 1] + (keyed[i] & 0xFFFFFFFF) * (keyed[i] >> 32);
}

static uint64_t long_hash(const unsigned char *p, size_t n) {
    uint64_t sums[LANES] = {P32_3, P64_1, P64_2, P64_3, P64_4, P32_2, P64_5, P32_1};
    size_t block = STRIPE * STRIPES, n_blocks = (n - 1) / block;
    for (size_t b = 0; b < n_blocks; b++) {
        for (size_t s = 0; s < STRIPES; s++)
            accumulate(sums, p + b * block + s * STRIPE, SECRET + 8 * s);
        for (int i = 0; i < LANES; i++)
            sums[i] = (sums[i] ^ sums[i] >> 47 ^ read64(SECRET + SECRET_BYTES - STRIPE + 8 * i)) * P32_1;
    }
    size_t left = (n - 1 - n_blocks * block) / STRIPE;
    for (size_t s = 0; s < left; s++)
        accumulate(sums, p + n_blocks * block + s * STRIPE, SECRET + 8 * s);
    accumulate(sums, p + n - STRIPE, SECRET + SECRET_BYTES - STRIPE - 7);
    uint64_t h = n * P64_1;
    for (int i = 0; i < 4; i++)
        h += folded(sums[2 * i] ^ read64(SECRET + 11 + 16 * i), sums[2 * i + 1] ^ read64(SECRET + 19 + 16 * i));
    return avalanche(h);
}

uint64_t xxh3_64(const void *data, size_t n) {
    if (n <= 16)
        return short_hash(data, n);
    return n <= 240 ? middle_hash(data, n) : long_hash(data, n);
}
