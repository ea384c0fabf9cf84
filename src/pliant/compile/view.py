"""A tensor seen through other strides: what reshapes, transposes and slices make of it. Knows no kernel."""

from collections.abc import Sequence
from dataclasses import dataclass

from pliant.compile.call import Ref
from pliant.ir.graph import Graph, TensorType


@dataclass(frozen=True, slots=True)
class View:
    """Element (i, j, ...) of `shape` is element offset + i * stride + j * stride + ... of `tensor`'s data."""

    tensor: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def attribute(self) -> tuple[int, ...]:
        """As a node's attribute: offset, shape, strides."""
        return (self.offset, *self.shape, *self.strides)

    def ref(self, itemsize: int) -> Ref:
        """The address of the first element."""
        return Ref(self.tensor, self.offset * itemsize)

    def broadcast(self, shape: Sequence[int]) -> "View":
        """Seen in a shape it broadcasts to: stride 0 along what is repeated."""
        lead = len(shape) - len(self.shape)
        own = (*(1,) * lead, *self.shape)
        strides = (*(0,) * lead, *self.strides)
        assert lead >= 0, f"{self.shape} has more dimensions than {tuple(shape)}"
        assert all(n in (1, m) for n, m in zip(own, shape, strict=True)), f"{self.shape} is no {tuple(shape)}"
        kept = tuple(s if n == m else 0 for s, n, m in zip(strides, own, shape, strict=True))
        return View(self.tensor, self.offset, tuple(shape), kept)


def whole(tensor: str, type_: TensorType) -> View:
    """A tensor as it is."""
    return View(tensor, 0, type_.shape, type_.strides)


def read(graph: Graph, tensor: str, attribute: object = None) -> View:
    """A node's input: through the view that an attribute describes, or as it is."""
    if attribute is None:
        return whole(tensor, graph.types[tensor])
    assert isinstance(attribute, tuple), f"{attribute!r} is no view"
    rank = len(attribute) // 2
    offset, *numbers = (int(n) for n in attribute)
    return View(tensor, offset, tuple(numbers[:rank]), tuple(numbers[rank:]))


def merge(extents: Sequence[int], strides: Sequence[Sequence[int]]) -> tuple[list[int], list[list[int]]]:
    """Dimensions that every operand walks as one become one; those of extent 1 go."""
    kept: list[int] = []
    found: list[list[int]] = [[] for _ in strides]
    for d, n in enumerate(extents):
        if n == 1:
            continue
        if kept and all(f[-1] == s[d] * n for f, s in zip(found, strides, strict=True)):
            kept[-1] *= n
            for f, s in zip(found, strides, strict=True):
                f[-1] = s[d]
            continue
        kept.append(n)
        for f, s in zip(found, strides, strict=True):
            f.append(s[d])
    return kept, found
