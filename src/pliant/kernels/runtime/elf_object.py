"""Read a relocatable ELF object: its sections, its symbols, and their places in one block of memory.

Source: System V ABI (gABI, chapter 4).
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pliant.errors import KernelError

_SHT_SYMTAB, _SHT_RELA, _SHT_NOBITS = 2, 4, 8
_SHF_WRITE, _SHF_ALLOC = 1, 2
_UNDEFINED = 0
_MARKS = ("", "$x", "$d")  # ELF for the Arm 64-bit Architecture, 5.5.2


@dataclass(frozen=True, slots=True)
class Section:
    """A section header: the fields that a loader needs."""

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
class Symbol:
    """A name, the section that defines it, and the offset in it."""

    name: str
    section: int
    value: int

    @property
    def is_undefined(self) -> bool:
        return self.section == _UNDEFINED


@dataclass(frozen=True, slots=True)
class ElfRelocation:
    """At byte `at` of the loaded sections: apply a patch of type `kind` with the address of `symbol` +
    `addend`.
    """

    at: int
    kind: int
    symbol: Symbol
    addend: int


@dataclass(frozen=True, slots=True)
class ElfObject:
    """An object file. `offsets` are the start offsets of loaded sections in a block of `n_bytes`, by section
    number.
    """

    data: bytes
    machine: int
    sections: Sequence[Section]
    symbols: Sequence[Symbol]
    offsets: dict[int, int]
    n_bytes: int

    def image(self) -> bytearray:
        """The unpatched loaded sections, each at its offset."""
        image = bytearray(self.n_bytes)
        for i, at in self.offsets.items():
            section = self.sections[i]
            if section.type != _SHT_NOBITS:
                image[at : at + section.size] = self.data[section.offset : section.offset + section.size]
        return image

    def relocations(self) -> Iterator[ElfRelocation]:
        """The relocations of loaded sections."""
        for section in self.sections:
            if section.type != _SHT_RELA or section.info not in self.offsets:
                continue
            for entry in range(section.offset, section.offset + section.size, 24):
                where, info, addend = struct.unpack_from("<QQq", self.data, entry)
                at = self.offsets[section.info] + where
                yield ElfRelocation(at, info & 0xFFFFFFFF, self.symbols[info >> 32], addend)

    def defined_symbols(self) -> dict[str, int]:
        """The offsets of its named symbols in the block, without Arm's marks of code and data."""
        inside = (s for s in self.symbols if s.name not in _MARKS and s.section in self.offsets)
        return {s.name: self.offsets[s.section] + s.value for s in inside}

    def undefined_names(self) -> tuple[str, ...]:
        """The undefined names."""
        return tuple(s.name for s in self.symbols if s.is_undefined and s.name)


def read_object(data: bytes) -> ElfObject:
    """Parse a 64-bit little-endian object. Raises KernelError for other data, or one with writable data."""
    if data[:6] != b"\x7fELF\x02\x01" or len(data) < 64:
        raise KernelError("a compiled kernel is no ELF object; empty the kernel cache and try again.")
    sections = _sections(data)
    offsets, n_bytes = _lay_out(sections)
    machine = struct.unpack_from("<H", data, 18)[0]
    return ElfObject(data, machine, sections, _symbols(data, sections), offsets, n_bytes)


def _sections(data: bytes) -> list[Section]:
    table, size, count = struct.unpack_from("<Q", data, 40)[0], *struct.unpack_from("<HH", data, 58)
    found = []
    for i in range(count):
        _, type_, flags, _, offset, n_bytes, link, info, align, _ = struct.unpack_from(
            "<IIQQQQIIQQ", data, table + i * size
        )
        found.append(Section(type_, flags, offset, n_bytes, link, info, align))
    return found


def _symbols(data: bytes, sections: Sequence[Section]) -> list[Symbol]:
    table = next(s for s in sections if s.type == _SHT_SYMTAB)
    names = sections[table.link]
    found = []
    for at in range(table.offset, table.offset + table.size, 24):
        name, _, _, section, value, _ = struct.unpack_from("<IBBHQQ", data, at)
        start = names.offset + name
        found.append(Symbol(data[start : data.index(b"\0", start)].decode(), section, value))
    return found


def _lay_out(sections: Sequence[Section]) -> tuple[dict[int, int], int]:
    offsets, end = {}, 0
    for i, section in enumerate(sections):
        if not section.is_loaded:
            continue
        if section.flags & _SHF_WRITE:
            raise KernelError("a compiled kernel has writable data; kernels keep their state in `scratch`.")
        end = -(-end // section.align) * section.align
        offsets[i] = end
        end += section.size
    return offsets, end
