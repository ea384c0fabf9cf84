"""Load an ELF object into this process and find its functions.

LLVM could do this too, but its library takes 45 MB of resident memory; a kernel takes a few KB.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from hashlib import sha256

from pliant import system
from pliant.errors import KernelError
from pliant.kernels.runtime.elf_object import ElfObject, ElfRelocation, read_object
from pliant.kernels.runtime.relocate import MACHINES, STUB_BYTES, Machine

_ABSOLUTE = 0xFFF1


def load(data: bytes) -> Mapping[str, int]:
    """Map an object's code read-only and executable; returns the addresses of its defined symbols.

    The code stays mapped until the process ends, so addresses stay valid. An object has no state, so it is
    mapped only once. Raises KernelError for an object of another machine or with unresolved symbols.
    """
    symbols = _symbols_of(sha256(data).digest())
    if not symbols:
        symbols.update(_map_code(data))
    return symbols


@cache
def _symbols_of(digest: bytes) -> dict[str, int]:
    """The symbols of the object with this digest; empty until it is mapped."""
    return {}


def _map_code(data: bytes) -> dict[str, int]:
    linker = Linker.of(data)
    if linker.machine.name != system.machine():
        raise KernelError(
            f"a compiled kernel is an ELF object for {linker.machine.name}, and this is {system.machine()}; "
            "empty the kernel cache and try again."
        )
    externals = {name: system.c_function(name) for name in linker.object.undefined_names()}
    base = system.reserve_code(linker.n_bytes)
    system.install_code(base, linker.link(base, externals))
    return {name: base + at for name, at in linker.object.defined_symbols().items()}


@dataclass(frozen=True, slots=True)
class Linker:
    """An object of either machine with the stubs that follow its sections in memory: `n_bytes` in total."""

    object: ElfObject
    machine: Machine
    stubs: Mapping[str, int]
    n_bytes: int

    @classmethod
    def of(cls, data: bytes) -> "Linker":
        """Parse an object. Raises KernelError for data that are not an ELF object of a known machine."""
        found = read_object(data)
        machine = next((one for one in MACHINES if one.number == found.machine), None)
        if machine is None:
            raise KernelError(f"a compiled kernel is an ELF object of machine {found.machine}, unknown here.")
        end = -(-found.n_bytes // STUB_BYTES) * STUB_BYTES
        externals = found.undefined_names()
        stubs = {name: end + i * STUB_BYTES for i, name in enumerate(externals)}
        return cls(found, machine, stubs, end + len(externals) * STUB_BYTES)

    def link(self, base: int, externals: Mapping[str, int]) -> bytes:
        """The bytes for the page address `base`; `externals` are the addresses of external functions.

        Raises KernelError for a relocation that is not supported.
        """
        code = self.object.image().ljust(self.n_bytes, b"\0")
        for name, at in self.stubs.items():
            code[at : at + STUB_BYTES] = self.machine.stub_to(externals[name])
        for relocation in self.object.relocations():
            value = base + self._target(relocation) + relocation.addend
            self.machine.patch(code, relocation.at, relocation.kind, base + relocation.at, value)
        return bytes(code)

    def _target(self, relocation: ElfRelocation) -> int:
        symbol, wants_slot = relocation.symbol, relocation.kind in self.machine.through_slot
        if symbol.is_undefined:
            return self.stubs[symbol.name] + (self.machine.slot_at if wants_slot else 0)
        if symbol.section == _ABSOLUTE or wants_slot:
            raise KernelError(
                f"relocation {relocation.kind} of {symbol.name!r} in a compiled kernel is not supported."
            )
        return self.object.offsets[symbol.section] + symbol.value
