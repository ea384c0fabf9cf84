"""The result of lowering a graph: calls of kernels on named tensors.

A `Call` is one entry of a native table before memory exists: its argument structure names tensors in place of
addresses. A session, or a linker for ahead-of-time output, fills in the addresses.
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
    """A generated function. `name` identifies its text; kernels of equal names are compiled once.

    `ir(isa)` returns the module that defines `void name(ptr args, i64 lo, i64 hi, ptr scratch)`.
    """

    name: str
    ir: Callable[[Isa], str] = field(compare=False, repr=False)


# A field of an argument structure: a number, an address, or an array of either.
FieldValue = int | float | Ref | None | tuple[int, ...] | tuple[Ref | None, ...]


@dataclass(frozen=True, slots=True)
class RowExtent:
    """How a call depends on the rows of one or more texts, which are set before each run.

    `fields` hold the total number of rows; `share(lengths)` gives the units and the grain for texts of these
    numbers of rows, concatenated. The call itself is for the largest number of rows.
    """

    fields: tuple[str, ...]
    share: Callable[[Sequence[int]], tuple[int, int]] = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Call:
    """`kernel` over units 0..n_units-1 with arguments of type `layout`, whose `fields` not named are zero.

    `reads` and `writes` are the tensors touched, which determine lifetimes. The first tensor written may use
    the memory of `in_place`, one of the tensors read, if that is as large and dies here. `scratch_bytes` is
    the need of one thread. Without an `extent` the call always runs all its units. With `is_shared`, the only
    tensor written is a temporary that no later call changes: an equal call need not run again.

    For reports: `label` is the source node, `op` its operator, `flops` the operations of the whole node, and
    `n_bytes` the bytes read and written, each tensor once.
    """

    kernel: Kernel
    layout: type[ctypes.Structure]
    fields: Mapping[str, FieldValue]
    n_units: int
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    grain: int = 1
    scratch_bytes: int = 0
    label: str = ""
    in_place: str = ""
    extent: RowExtent | None = None
    is_shared: bool = False
    op: str = ""
    flops: int = 0
    n_bytes: int = 0


@dataclass(frozen=True, slots=True)
class TensorAlias:
    """`tensor` shares the memory of `source` from `offset` on, e.g. the result of a reshape."""

    tensor: str
    source: str
    offset: int = 0


@dataclass(frozen=True, slots=True)
class PackedConstant:
    """A constant in a kernel's layout: `n_bytes`, written once by `fill` into its final memory.

    `source` is the original constant; a source that only packed forms read is not kept.
    """

    n_bytes: int
    fill: Callable[[np.ndarray], None] = field(compare=False, repr=False)
    source: str = ""


@dataclass(frozen=True, slots=True)
class LoweredNode:
    """The lowering of one node: calls in order, aliases, scratch tensors (bytes), and packed constants."""

    calls: tuple[Call, ...] = ()
    aliases: tuple[TensorAlias, ...] = ()
    temporaries: Mapping[str, int] = field(default_factory=dict)
    packed: Mapping[str, PackedConstant] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Target:
    """The target of compilation: instruction set and number of threads."""

    isa: Isa
    n_threads: int = 1
