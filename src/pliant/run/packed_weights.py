"""Constants packed for kernels, made once and shared by all images of a model."""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import final

import numpy as np

from pliant.compiler.executable.call import PackedConstant
from pliant.compiler.executable.image import Image
from pliant.kernels.runtime.aligned_memory import aligned_bytes
from pliant.run.memory_use import is_mapped
from pliant.run.weight_sizes import SMALL_BYTES, GivenArrays, WeightSizes

_DROP_EVERY_BYTES = 1 << 22


def weight_sizes(image: Image, sources: Mapping[str, np.ndarray], own: GivenArrays) -> WeightSizes:
    """The bytes that `SharedWeights.pack` will need for an image, before anything is allocated.

    `own` are the arrays of the model, which stay in memory, read or not.
    """
    forms: dict[Hashable, int] = {}
    packed_from = []
    for name, packed in image.packed.items():
        source = sources.get(packed.source)
        forms[_packed_key(name, packed, source)] = packed.n_bytes
        packed_from += [] if source is None else [source]
    given = own.plus(packed_from)
    for name, array in image.constants.items():
        is_read_there = array.flags.c_contiguous and array in given
        if array.nbytes <= SMALL_BYTES or not (is_mapped(array) or is_read_there):
            forms[_constant_key(name, array)] = array.nbytes
    return WeightSizes(forms, {a.ctypes.data: a.nbytes for a in given.arrays})


@final
class SharedWeights:
    """Weights of several images, each held once.

    A packed constant is identified by its name, which states its form, and its source array. `drop_pages`
    tells the system that mapped sources need not stay in memory. `own` are the arrays of the model.
    """

    def __init__(
        self,
        drop_pages: Callable[[], None] = lambda: None,
        own: Iterable[np.ndarray] = (),
    ) -> None:
        self._drop_pages, self.own = drop_pages, GivenArrays(own)
        # Sources are kept alive, so that an array's id is not reused.
        self._packed: dict[tuple[str, int, int], tuple[np.ndarray, np.ndarray | None]] = {}

    def keep(self, used: Sequence[Mapping[str, np.ndarray]]) -> None:
        """Free packed forms that are in none of `used`."""
        held = {id(array) for weights in used for array in weights.values()}
        self._packed = {key: form for key, form in self._packed.items() if id(form[0]) in held}

    @property
    def given(self) -> GivenArrays:
        """The arrays of the model, and other sources of packed forms, that are in memory and not mapped."""
        forms = list(self._packed.values())  # another thread may be packing a shape
        return self.own.plus(source for _, source in forms if source is not None)

    def pack(self, image: Image, sources: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Every constant and packed constant of `image` by name; `sources` are its graph's constants."""
        weights = {x: self._constant(x, a) for x, a in image.constants.items()}
        since = 0
        for name, packed in image.packed.items():
            source = sources.get(packed.source)
            key = _packed_key(name, packed, source)
            if source is None or key not in self._packed:
                memory = aligned_bytes(packed.n_bytes)
                packed.fill(memory)
                since += packed.n_bytes
                if source is None:
                    weights[name] = memory
                    continue
                self._packed[key] = (memory, source)
            weights[name] = self._packed[key][0]
            if since >= _DROP_EVERY_BYTES:
                self._drop_pages()
                since = 0
        self._drop_pages()
        return weights

    def _constant(self, name: str, array: np.ndarray) -> np.ndarray:
        if array.nbytes > SMALL_BYTES:
            return np.ascontiguousarray(array)
        key = _constant_key(name, array)
        if key not in self._packed:
            copy = aligned_bytes(array.nbytes).view(array.dtype).reshape(array.shape)
            copy[...] = array
            self._packed[key] = (copy, array)
        return self._packed[key][0]


def _packed_key(name: str, packed: PackedConstant, source: np.ndarray | None) -> tuple[str, int, int]:
    return name, packed.n_bytes, id(packed if source is None else source)


def _constant_key(name: str, array: np.ndarray) -> tuple[str, int, int]:
    return name, array.nbytes, id(array)
