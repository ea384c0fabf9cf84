"""Load an ELF object into this process and find its functions.

LLVM could do this too, but its library takes 45 MB of resident memory; a kernel takes a few KB.
Sources: System V ABI (gABI, chapter 4) and its AMD64 supplement, table 4.9.
"""

import ctypes
import mmap
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from pliant.errors import KernelError

_SHT_SYMTAB, _SHT_RELA, _SHT_NOBITS = 2, 4, 8
_SHF_WRITE, _SHF_ALLOC = 1, 2
_UNDEFINED, _ABSOLUTE = 0, 0xFFF1
_64, _PC32, _PLT32, _PC64 = 1, 2, 4, 24
_THROUGH_SLOT = (9, 41, 42)  # GOTPCREL, GOTPCRELX, REX_GOTPCRELX
_STUB = b"\xff\x25\x00\x00\x00\x00"  # jmp [rip + 0], followed by the address
_STUB_BYTES = 16


@dataclass(frozen=True, slots=True)
class _Section:
    type: int
    flags: int
    offset: int
    size: int
    link: int
    info: int
    align: int

    @property
    def is_loaded(self) -> bool:
        return bool(self.flags & _SHF_ALLOC) and self.size > 0


@dataclass(frozen=True, slots=True)
class _Symbol:
    name: str
    section: int
    value: int


def load(data: bytes) -> dict[str, int]:
    """Map an object's code read-only and executable; the addresses of its defined symbols.

    The code stays mapped as long as the process lives, so an address is never left dangling.
    Raises KernelError for an object that is not x86-64 or needs what is not here.
    """
    if data[:6] != b"\x7fELF\x02\x01" or struct.unpack_from("<H", data, 18)[0] != 62:
        raise KernelError("a compiled kernel is no x86-64 ELF object; empty the kernel cache and try again.")
    sections = _sections(data)
    symbols = _symbols(data, sections)
    offsets, end = _lay_out(sections)
    outside = [s.name for s in symbols if s.section == _UNDEFINED and s.name]
    stubs = {name: end + i * _STUB_BYTES for i, name in enumerate(outside)}
    image = bytearray(end + len(outside) * _STUB_BYTES)
    for i, at in offsets.items():
        section = sections[i]
        if section.type != _SHT_NOBITS:
            image[at : at + section.size] = data[section.offset : section.offset + section.size]
    for name, at in stubs.items():
        image[at : at + _STUB_BYTES] = _STUB + struct.pack("<Q", _outside(name)) + b"\x90\x90"
    base = _reserve(len(image))
    for section in sections:
        if section.type == _SHT_RELA and section.info in offsets:
            _relocate(data, section, image, base, offsets, symbols, stubs)
    _install(base, image)
    return {s.name: base + offsets[s.section] + s.value for s in symbols if s.name and s.section in offsets}


def _sections(data: bytes) -> list[_Section]:
    table, size, count = struct.unpack_from("<Q", data, 40)[0], *struct.unpack_from("<HH", data, 58)
    found = []
    for i in range(count):
        _, type_, flags, _, offset, n_bytes, link, info, align, _ = struct.unpack_from(
            "<IIQQQQIIQQ", data, table + i * size
        )
        found.append(_Section(type_, flags, offset, n_bytes, link, info, align))
    return found


def _symbols(data: bytes, sections: Sequence[_Section]) -> list[_Symbol]:
    table = next(s for s in sections if s.type == _SHT_SYMTAB)
    names = sections[table.link]
    found = []
    for at in range(table.offset, table.offset + table.size, 24):
        name, _, _, section, value, _ = struct.unpack_from("<IBBHQQ", data, at)
        start = names.offset + name
        found.append(_Symbol(data[start : data.index(b"\0", start)].decode(), section, value))
    return found


def _lay_out(sections: Sequence[_Section]) -> tuple[dict[int, int], int]:
    offsets, end = {}, 0
    for i, section in enumerate(sections):
        if not section.is_loaded:
            continue
        if section.flags & _SHF_WRITE:
            raise KernelError("a compiled kernel has writable data; kernels keep their state in `scratch`.")
        end = -(-end // section.align) * section.align
        offsets[i] = end
        end += section.size
    return offsets, -(-end // _STUB_BYTES) * _STUB_BYTES


def _relocate(
    data: bytes,
    section: _Section,
    image: bytearray,
    base: int,
    offsets: dict[int, int],
    symbols: Sequence[_Symbol],
    stubs: dict[str, int],
) -> None:
    for entry in range(section.offset, section.offset + section.size, 24):
        where, info, addend = struct.unpack_from("<QQq", data, entry)
        kind, symbol = info & 0xFFFFFFFF, symbols[info >> 32]
        at = offsets[section.info] + where
        if symbol.section == _UNDEFINED:
            target = base + stubs[symbol.name] + (len(_STUB) if kind in _THROUGH_SLOT else 0)
        elif symbol.section == _ABSOLUTE or kind in _THROUGH_SLOT:
            raise KernelError(f"relocation {kind} of {symbol.name!r} in a compiled kernel is not supported.")
        else:
            target = base + offsets[symbol.section] + symbol.value
        value = target + addend
        if kind == _64:
            struct.pack_into("<Q", image, at, value)
        elif kind in (_PC32, _PLT32, *_THROUGH_SLOT):
            struct.pack_into("<i", image, at, value - base - at)
        elif kind == _PC64:
            struct.pack_into("<q", image, at, value - base - at)
        else:
            raise KernelError(f"relocation {kind} in a compiled kernel is not supported.")


def _outside(name: str) -> int:
    """The address of a libc function (LLVM calls memset and memcpy on its own)."""
    try:
        function = getattr(ctypes.CDLL(None), name)
    except AttributeError:
        raise KernelError(f"a compiled kernel calls {name!r}, which this system's C library lacks.") from None
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def _reserve(n_bytes: int) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    base = libc.mmap(None, n_bytes, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
    if base is None or base == ctypes.c_void_p(-1).value:
        raise KernelError(f"no memory for {n_bytes} bytes of code (errno {ctypes.get_errno()}).")
    return int(base)


def _install(base: int, image: bytearray) -> None:
    ctypes.memmove(base, bytes(image), len(image))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    if libc.mprotect(base, len(image), mmap.PROT_READ | mmap.PROT_EXEC):
        raise KernelError(
            f"this system forbids executable memory (errno {ctypes.get_errno()}); "
            "its security policy (SELinux execmem, or similar) must allow it for pliant to run."
        )
