"""A compiled graph in memory: feeds in, arrays out, one native call between. Knows no operator or plan."""

import ctypes
from collections.abc import Mapping
from functools import partial
from typing import final

import numpy as np

from pliant.compile.call import Call, Ref
from pliant.compile.image import Image
from pliant.errors import InputError
from pliant.ir.graph import TensorType
from pliant.kernels.jit import Library
from pliant.kernels.memory import aligned_bytes
from pliant.kernels.pool import Pool, Table


@final
class CompiledSession:
    """Runs one image; one run at a time. The pool may be shared with other sessions and is left open.

    Constants and packed weights stand in memory once; the arena is allocated here and never again.
    """

    def __init__(self, image: Image, pool: Pool, library: Library) -> None:
        self.image = image
        self._pool = pool
        pool.reserve(image.scratch_bytes)
        self._arena = aligned_bytes(image.arena_bytes)
        self._constants = {x: np.ascontiguousarray(a) for x, a in image.constants.items()}
        self._packed = {}
        for name, packed in image.packed.items():
            memory = aligned_bytes(packed.n_bytes)
            packed.fill(memory)
            self._packed[name] = memory
        self._base = {"arena": self._arena.ctypes.data}
        self._base |= {x: a.ctypes.data for x, a in (*self._constants.items(), *self._packed.items())}
        self._patches: dict[str, list[tuple[ctypes.c_uint64, int]]] = {}
        self._table = Table()
        texts = {c.kernel.name: partial(c.kernel.ir, library.isa) for c in image.calls}
        at = library.functions(texts)
        for call in image.calls:
            self._table.add(at[call.kernel.name], self._arguments(call), call.n_units, call.grain)

    @property
    def arena_bytes(self) -> int:
        return self.image.arena_bytes

    def run(
        self, feeds: Mapping[str, np.ndarray], out: Mapping[str, np.ndarray] | None = None
    ) -> dict[str, np.ndarray]:
        """Outputs by name, in fresh arrays or in those of `out`. Raises InputError naming a wrong feed."""
        self._check(feeds)
        held = {}
        for x in self.image.inputs:
            held[x] = np.ascontiguousarray(feeds[x])
            self._point(x, held[x].ctypes.data)
        results = {}
        for y, type_ in self.image.outputs.items():
            given = None if out is None else out.get(y)
            results[y] = np.empty(type_.shape, type_.numpy) if given is None else _fitting(y, given, type_)
            if y not in held:
                self._point(y, results[y].ctypes.data)
        if len(self._table):
            self._pool.walk(self._table)
        for y, source in self.image.copies:
            self._copy(results[y], source, results | held)
        return results

    def _copy(self, target: np.ndarray, source: str, held: Mapping[str, np.ndarray]) -> None:
        place = self.image.places[source]
        base = held[place.space].ctypes.data if place.space in held else self._base[place.space]
        ctypes.memmove(target.ctypes.data, base + place.offset, target.nbytes)

    def _point(self, space: str, address: int) -> None:
        for pointer, offset in self._patches.get(space, ()):
            pointer.value = address + offset

    def _arguments(self, call: Call) -> ctypes.Structure:
        """The call's structure with every address known by now; the others are set before each run."""
        arguments = call.layout()
        for name, value in call.fields.items():
            owner, last = _owner(arguments, name)
            numbers = value if isinstance(value, tuple) else (value,)
            address = ctypes.addressof(owner) + getattr(type(owner), last).offset
            for i, number in enumerate(numbers):
                if isinstance(number, Ref):
                    self._resolve(ctypes.c_uint64.from_address(address + 8 * i), number)
                elif isinstance(value, tuple):
                    getattr(owner, last)[i] = number
                else:
                    setattr(owner, last, number)
        return arguments

    def _resolve(self, pointer: ctypes.c_uint64, ref: Ref) -> None:
        place = self.image.places[ref.tensor]
        offset = place.offset + ref.offset
        if place.space in self._base:
            pointer.value = self._base[place.space] + offset
        else:
            self._patches.setdefault(place.space, []).append((pointer, offset))

    def _check(self, feeds: Mapping[str, np.ndarray]) -> None:
        inputs = self.image.inputs
        wrong = sorted(set(feeds) ^ set(inputs))
        if wrong:
            raise InputError(f"feeds {wrong} are missing or unknown; the inputs are {list(inputs)}.")
        for x, type_ in inputs.items():
            _fitting(x, feeds[x], type_)


def _owner(structure: ctypes.Structure, name: str) -> tuple[ctypes.Structure, str]:
    """The structure that has the last part of a dotted field name."""
    *path, last = name.split(".")
    for part in path:
        structure = getattr(structure, part)
    return structure, last


def _fitting(name: str, array: np.ndarray, type_: TensorType) -> np.ndarray:
    """`array` if its dtype and shape are right. Raises InputError that says what they are and must be."""
    if array.dtype != type_.numpy or array.shape != type_.shape:
        raise InputError(f"{name!r} is {array.dtype}{list(array.shape)}, but must be {type_}.")
    return array
