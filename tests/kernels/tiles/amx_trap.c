/* AMX on an x86-64 CPU without it: its instructions raise SIGILL, and the handler does what they say.

   So the machine code that AMX would run is what runs here, everything else of it natively. Written from the
   Intel SDM, volume 2 ("LDTILECFG", "TILELOADD", "TILESTORED", "TILEZERO", "TDPBF16PS", "TDPBSSD/..."); what
   the SDM makes an exception of ends the process with a message. */
#define _GNU_SOURCE
#include <math.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

enum { CONFIGURED, RELEASED, ZEROED, LOADED, STORED, BYTES, BFLOATS, N_COUNTS };

static __thread struct {
  uint8_t config[64];
  uint8_t tiles[8][16][64];
} state;
static uint64_t counts[N_COUNTS];
static struct sigaction before;

uint64_t amx_count(int which) { return __atomic_load_n(&counts[which], __ATOMIC_SEQ_CST); }

/* Whether this thread's tiles are in use. */
int amx_is_configured(void) { return state.config[0]; }

static void count(int which) { __atomic_fetch_add(&counts[which], 1, __ATOMIC_SEQ_CST); }

static void fail(const char *what) {
  fprintf(stderr, "amx: %s\n", what);
  abort();
}

static int rows(int t) { return state.config[48 + t]; }

static int row_bytes(int t) {
  uint16_t size;
  memcpy(&size, state.config + 16 + 2 * t, 2);
  return size;
}

static void need(int t) {
  if (state.config[0] != 1) fail("no configuration is in force");
  if (!rows(t) || !row_bytes(t)) fail("a tile without rows or columns");
}

static void configure(const uint8_t *from) {
  static const uint8_t zeros[14];
  if (from[0] != 1) fail("a palette that does not exist");
  if (from[1] || memcmp(from + 2, zeros, 14) || memcmp(from + 32, zeros, 14) || memcmp(from + 56, zeros, 8))
    fail("reserved bytes of a configuration are not zero");
  memset(&state, 0, sizeof state);
  memcpy(state.config, from, 64);
  for (int t = 0; t < 8; t++) {
    if (rows(t) > 16 || row_bytes(t) > 64 || row_bytes(t) % 4) fail("a tile that is too large");
    if (!rows(t) != !row_bytes(t)) fail("a tile with rows or columns only");
  }
}

static float from_bfloat(const uint8_t *at) {
  uint16_t half;
  memcpy(&half, at, 2);
  uint32_t word = (uint32_t)half << 16;
  if (!(word & 0x7F800000)) word &= 0x80000000; /* subnormals are zeros */
  float x;
  memcpy(&x, &word, 4);
  return x;
}

static float flushed(float x) { return fpclassify(x) == FP_SUBNORMAL ? copysignf(0, x) : x; }

static void check_product(int c, int a, int b) {
  need(c), need(a), need(b);
  if (c == a || a == b || b == c) fail("one tile twice in a product");
  if (rows(c) != rows(a) || row_bytes(a) / 4 != rows(b) || row_bytes(c) != row_bytes(b))
    fail("tiles whose shapes do not fit");
}

static void multiply_bytes(int c, int a, int b, int a_signed, int b_signed) {
  check_product(c, a, b);
  for (int m = 0; m < rows(c); m++)
    for (int n = 0; n < row_bytes(c) / 4; n++) {
      uint32_t sum;
      memcpy(&sum, &state.tiles[c][m][4 * n], 4);
      for (int k = 0; k < row_bytes(a) / 4; k++)
        for (int i = 0; i < 4; i++) {
          uint8_t x = state.tiles[a][m][4 * k + i], y = state.tiles[b][k][4 * n + i];
          sum += (uint32_t)((a_signed ? (int8_t)x : x) * (b_signed ? (int8_t)y : y));
        }
      memcpy(&state.tiles[c][m][4 * n], &sum, 4);
    }
}

static void multiply_bfloats(int c, int a, int b) {
  check_product(c, a, b);
  for (int m = 0; m < rows(c); m++)
    for (int n = 0; n < row_bytes(c) / 4; n++) {
      float even = 0, odd = 0, sum;
      for (int k = 0; k < row_bytes(a) / 4; k++) {
        const uint8_t *x = &state.tiles[a][m][4 * k], *y = &state.tiles[b][k][4 * n];
        even = flushed(fmaf(from_bfloat(x), from_bfloat(y), even));
        odd = flushed(fmaf(from_bfloat(x + 2), from_bfloat(y + 2), odd));
      }
      memcpy(&sum, &state.tiles[c][m][4 * n], 4);
      sum = flushed(flushed(sum) + flushed(even + odd));
      memcpy(&state.tiles[c][m][4 * n], &sum, 4);
    }
}

/* The general registers by their numbers in instructions. */
static const int registers[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                                  REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};

/* Returns the bytes of the instruction at `p`, which it has executed, or 0 if it is another. */
static int execute(const uint8_t *p, const greg_t *gregs) {
  if (p[0] != 0xC4 || (p[1] & 31) != 2 || (p[2] & 0x84)) return 0; /* VEX.128.0F38.W0 */
  int high_index = p[1] & 0x40 ? 0 : 8, high_base = p[1] & 0x20 ? 0 : 8;
  int prefix = p[2] & 3, vvvv = ~p[2] >> 3 & 15, op = p[3]; /* prefix: none, 66, F3, F2 */
  int mod = p[4] >> 6, reg = p[4] >> 3 & 7, rm = p[4] & 7;
  if (op == 0x5C && prefix == 2 && mod == 3) return count(BFLOATS), multiply_bfloats(reg, rm, vvvv), 5;
  if (op == 0x5E && mod == 3) {
    count(BYTES); /* none: uu, 66: us, F3: su, F2: ss */
    return multiply_bytes(reg, rm, vvvv, prefix >= 2, prefix & 1), 5;
  }
  if (op == 0x49 && mod == 3) {
    if (prefix == 0 && p[4] == 0xC0) return count(RELEASED), memset(&state, 0, sizeof state), 5;
    if (prefix != 3 || rm) return 0;
    need(reg);
    return count(ZEROED), memset(state.tiles[reg], 0, 1024), 5;
  }
  if ((op != 0x49 && op != 0x4B) || mod == 3) return 0;
  const uint8_t *next = p + 5;
  uintptr_t at = 0, stride = 0;
  if (rm == 4) {
    int sib = *next++, index = (sib >> 3 & 7) | high_index, base = sib & 7;
    if (index != 4) stride = (uintptr_t)gregs[registers[index]] << (sib >> 6);
    if (mod == 0 && base == 5) fail("an address without a base");
    at = (uintptr_t)gregs[registers[base | high_base]];
  } else if (mod == 0 && rm == 5) {
    fail("an address relative to the instruction");
  } else {
    at = (uintptr_t)gregs[registers[rm | high_base]];
  }
  if (mod == 1) at += (uintptr_t)(intptr_t)(int8_t)*next++;
  if (mod == 2) {
    int32_t offset;
    memcpy(&offset, next, 4), next += 4;
    at += (uintptr_t)(intptr_t)offset;
  }
  if (op == 0x49) {
    if (prefix != 0 || reg) return 0;
    count(CONFIGURED), configure((const uint8_t *)(at + stride));
  } else if (prefix == 3) {
    need(reg), count(LOADED), memset(state.tiles[reg], 0, 1024);
    for (int i = 0; i < rows(reg); i++)
      memcpy(state.tiles[reg][i], (const void *)(at + i * stride), row_bytes(reg));
  } else if (prefix == 2) {
    need(reg), count(STORED);
    for (int i = 0; i < rows(reg); i++)
      memcpy((void *)(at + i * stride), state.tiles[reg][i], row_bytes(reg));
  } else {
    return 0;
  }
  return (int)(next - p);
}

static void on_illegal(int signal, siginfo_t *info, void *context) {
  greg_t *gregs = ((ucontext_t *)context)->uc_mcontext.gregs;
  int size = execute((const uint8_t *)gregs[REG_RIP], gregs);
  if (size) {
    gregs[REG_RIP] += size;
  } else if (before.sa_flags & SA_SIGINFO) {
    before.sa_sigaction(signal, info, context);
  } else {
    sigaction(SIGILL, &before, NULL); /* it happens again, and ends the process */
  }
}

int amx_install(void) {
  struct sigaction action = {.sa_sigaction = on_illegal, .sa_flags = SA_SIGINFO};
  return sigaction(SIGILL, &action, &before);
}
