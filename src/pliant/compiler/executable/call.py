"""The result of lowering a graph: calls of kernels on named tensors.

A `Call` is one entry of a native table before memory exists: its argument structure names tensors where
the entry will hold addresses. A session fills the addresses in; ahead of time a linker does.
"""

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from pliant.kernels.emit.isa import Isa


@dataclass(frozen=True, slots=True)
class Ref:
    """The address of byte `offset` of a tensor: of the graph, a temporary, or a packed constant."""

    tensor: str
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Kernel:
    """A generated function `name`, unique for its text: equal names are compiled once.

    `ir(isa)` gives the module that defines `void name(ptr args, i64 lo, i64 hi, ptr scratch)`.
    """

    name: str
    ir: Callable[[Isa], str] = field(compare=False, repr=False)


# A field of an argument structure: a number, an address, or an array of either.
Field = int | float | Ref | None | tuple[int, ...] | tuple[Ref | None, ...]


@dataclass(frozen=True, slots=True)
class Extent:
    """What of a call follows from the rows of one or more texts, which are bound before each run.

    `fields` hold the number of all rows; `share(lengths)` are the units and the grain for texts of as many
    rows, whose rows stand one behind the other. The call itself stands for the most rows.
    """

    fields: tuple[str, ...]
    share: Callable[[Sequence[int]], tuple[int, int]] = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Call:
    """`kernel` over units 0..n_units-1 with arguments of type `layout`, whose `fields` not named are zero.

    `reads` and `writes` are the tensors touched; from them lifetimes follow. The first tensor written may
    take the bytes of `in_place`, one of those read, if that is as large and dies here. `scratch_bytes` is
    what a thread needs. Without an `extent` the call is always whole.

    For people: `label` is the node it came from, `op` its operator, `flops` those of the whole node, and
    `n_bytes` are read and written, each tensor once.
    """

    kernel: Kernel
    layout: type[ctypes.Structure]
    fields: Mapping[str, Field]
    n_units: int
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    grain: int = 1
    scratch_bytes: int = 0
    label: str = ""
    in_place: str = ""
    extent: Extent | None = None
    op: str = ""
    flops: int = 0
    n_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Alias:
    """`tensor` is the bytes of `source` from `offset` on: a reshape costs nothing."""

    tensor: str
    source: str
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Packed:
    """A constant in the form a kernel wants: `n_bytes`, written once by `fill` into the memory it stays in.

    `source` is the constant it is made from; a source that only packed forms read is never held itself.
    """

    n_bytes: int
    fill: Callable[[np.ndarray], None] = field(compare=False, repr=False)
    source: str = ""


@dataclass(frozen=True, slots=True)
class Lowered:
    """What one node became: calls in order, aliases, scratch tensors (bytes), and packed constants."""

    calls: tuple[Call, ...] = ()
    aliases: tuple[Alias, ...] = ()
    temporaries: Mapping[str, int] = field(default_factory=dict)
    packed: Mapping[str, Packed] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Target:
    """What is compiled for."""

    isa: Isa
    n_threads: int = 1
