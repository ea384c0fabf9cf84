"""Patch addresses into machine code: the relocations that LLVM writes for kernels, on each machine.

Sources: AMD64 supplement of the System V ABI, table 4.9; ELF for the Arm 64-bit Architecture, 5.7.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass

from pliant.errors import KernelError

STUB_BYTES = 16


@dataclass(frozen=True, slots=True)
class Machine:
    """How one architecture's objects are linked. `number` is ELF's, `name` is `system.machine`'s.

    An external function, which may be out of a call's range, is called through a stub of STUB_BYTES: `stub`
    with its address at `slot_at`. Relocations in `through_slot` refer to the location of that address.
    `patch(code, at, kind, place, value)` patches `code` at byte `at`, which will run at address `place`.
    """

    name: str
    number: int
    stub: bytes
    slot_at: int
    through_slot: frozenset[int]
    patch: Callable[[bytearray, int, int, int, int], None]

    def stub_to(self, address: int) -> bytes:
        """Code that jumps to `address`."""
        head, tail = self.stub[: self.slot_at], self.stub[self.slot_at :]
        return head + struct.pack("<Q", address) + tail


def _patch_x86_64(code: bytearray, at: int, kind: int, place: int, value: int) -> None:
    if kind == 1:  # 64
        struct.pack_into("<Q", code, at, value)
    elif kind in (2, 4, *X86_64.through_slot):  # PC32, PLT32
        struct.pack_into("<i", code, at, _within(value - place, 32))
    elif kind == 24:  # PC64
        struct.pack_into("<q", code, at, value - place)
    else:
        raise KernelError(f"relocation {kind} in a compiled kernel is not supported.")


_LOAD_SHIFTS = {277: 0, 278: 0, 284: 1, 285: 2, 286: 3, 299: 4, 312: 3}
"""ADD_ABS_LO12_NC, LDST8, 16, 32, 64, 128_ABS_LO12_NC and LD64_GOT_LO12_NC: the shifts by which offsets are
scaled.
"""
_BRANCH_BITS = {282: (26, 0), 283: (26, 0), 280: (19, 5), 279: (14, 5)}
"""JUMP26, CALL26, CONDBR19 and TSTBR14: the number of bits of the word offset, and their position."""


def _patch_aarch64(code: bytearray, at: int, kind: int, place: int, value: int) -> None:
    distance = value - place
    if kind == 257:  # ABS64
        struct.pack_into("<Q", code, at, value)
    elif kind == 260:  # PREL64
        struct.pack_into("<q", code, at, distance)
    elif kind == 261:  # PREL32
        struct.pack_into("<i", code, at, _within(distance, 32))
    elif kind in _BRANCH_BITS:
        bits, low = _BRANCH_BITS[kind]
        _set_bits(code, at, low, bits, _within(distance, bits + 2) >> 2)
    elif kind == 274:  # ADR_PREL_LO21
        _set_adr(code, at, _within(distance, 21))
    elif kind in (275, 311):  # ADR_PREL_PG_HI21, ADR_GOT_PAGE
        _set_adr(code, at, _within((value >> 12) - (place >> 12), 21))
    elif kind in _LOAD_SHIFTS:
        _set_bits(code, at, 10, 12, (value & 0xFFF) >> _LOAD_SHIFTS[kind])
    else:
        raise KernelError(f"relocation {kind} in a compiled kernel is not supported.")


def _set_adr(code: bytearray, at: int, value: int) -> None:
    """The immediate of ADR and ADRP: two low bits at 29, the others at 5."""
    _set_bits(code, at, 29, 2, value & 3)
    _set_bits(code, at, 5, 19, value >> 2)


def _set_bits(code: bytearray, at: int, low: int, bits: int, value: int) -> None:
    mask = (1 << bits) - 1
    (word,) = struct.unpack_from("<I", code, at)
    struct.pack_into("<I", code, at, word & ~(mask << low) | (value & mask) << low)


def _within(distance: int, bits: int) -> int:
    """`distance`; raises KernelError if it does not fit a signed number of `bits` bits."""
    if not -(1 << bits - 1) <= distance < 1 << bits - 1:
        raise KernelError(f"a compiled kernel reaches {distance} bytes or pages away, more than {bits} bits.")
    return distance


X86_64 = Machine(
    "x86_64",
    62,
    b"\xff\x25\x00\x00\x00\x00\x90\x90",  # jmp [rip + 0]
    6,
    frozenset([9, 41, 42]),  # GOTPCREL, GOTPCRELX, REX_GOTPCRELX
    _patch_x86_64,
)
AARCH64 = Machine(
    "aarch64",
    183,
    struct.pack("<II", 0x58000050, 0xD61F0200),  # ldr x16, 8; br x16
    8,
    frozenset([311, 312]),  # ADR_GOT_PAGE, LD64_GOT_LO12_NC
    _patch_aarch64,
)
MACHINES = (X86_64, AARCH64)
