"""One kernel per element-wise expression: broadcast operands in, a contiguous tensor out.

The output is rows of `inner` contiguous elements; over one row every operand is contiguous or one value, as
given by the pattern, one letter per operand. Between rows each operand has its own strides.

An output may be one of its inputs if both have the same layout.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from math import prod

from pliant.ir.symbolic import at_least
from pliant.kernels.emit.builder import Function, Module
from pliant.kernels.emit.dtypes import DTYPES, narrow, widen
from pliant.kernels.emit.expression import CONSTANT, INPUT, Expr, inputs
from pliant.kernels.emit.isa import Isa
from pliant.kernels.emit.nest_offsets import find_offsets
from pliant.kernels.emit.operations import evaluate
from pliant.kernels.emit.values import Value, vector

MAX_INPUTS, MAX_OUTER = 16, 7
UNIT_ELEMENTS = 4096
CONTIGUOUS, SCALAR = "c", "s"

_SLOT_BYTES = 128  # a vector of the widest elements, for the partial last vector of a row
_PACK = 4  # vectors of float32 to one of bytes
_SIMPLE = (INPUT, CONSTANT, "cast", "add", "sub", "mul", "div", "round", "min", "max")
SCRATCH_BYTES = (MAX_INPUTS + 1) * _SLOT_BYTES


class MapArgs(ctypes.Structure):
    """Rows of `inner` elements, `rows` of them in up to MAX_OUTER dimensions, the fastest first.

    `strides[i * MAX_OUTER + d]` is operand i's stride, in elements, along outer dimension d. A unit is
    `unit_rows` rows by `unit_inner` elements; a row has `chunks` units.
    """

    _fields_ = (
        ("x", ctypes.c_void_p * MAX_INPUTS),
        ("out", ctypes.c_void_p),
        ("inner", ctypes.c_int64),
        ("rows", ctypes.c_int64),
        ("rank", ctypes.c_int64),
        ("unit_rows", ctypes.c_int64),
        ("unit_inner", ctypes.c_int64),
        ("chunks", ctypes.c_int64),
        ("sizes", ctypes.c_int64 * MAX_OUTER),
        ("strides", ctypes.c_int64 * (MAX_INPUTS * MAX_OUTER)),
    )


@dataclass(frozen=True, slots=True)
class MapLoops:
    """The numbers of MapArgs and the pattern, for operands of given shapes.

    `sizes` and the operands' `strides` are those of the outer dimensions, the fastest first.
    """

    inner: int
    sizes: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]
    pattern: str

    @property
    def rows(self) -> int:
        return prod(self.sizes)

    @property
    def unit_inner(self) -> int:
        return UNIT_ELEMENTS

    @property
    def unit_rows(self) -> int:
        return at_least(UNIT_ELEMENTS // self.inner, 1)

    @property
    def chunks(self) -> int:
        return -(-self.inner // UNIT_ELEMENTS)

    @property
    def n_units(self) -> int:
        return -(-self.rows // self.unit_rows) * self.chunks


def plan_map(shape: Sequence[int], operands: Sequence[Sequence[int]]) -> MapLoops | None:
    """Operands of shapes that broadcast to `shape`, with adjacent dimensions merged where all operands allow
    it.

    None if the walk needs more than MAX_OUTER dimensions. `shape` must not have a zero.
    """
    dims: list[tuple[int, list[int]]] = []  # size, strides; the fastest first
    steps = [_strides(operand, len(shape)) for operand in operands]
    for d in range(len(shape) - 1, -1, -1):
        size, strides = shape[d], [s[d] for s in steps]
        if size == 1:
            continue
        if dims and all(s == n * dims[-1][0] for s, n in zip(strides, dims[-1][1], strict=True)):
            dims[-1] = (dims[-1][0] * size, dims[-1][1])
        else:
            dims.append((size, strides))
    inner, pattern = (dims[0][0], dims[0][1]) if dims else (1, [1] * len(operands))
    outer = dims[1:] or [(1, [0] * len(operands))]
    if len(outer) > MAX_OUTER:
        return None
    return MapLoops(
        inner,
        tuple(size for size, _ in outer),
        tuple(tuple(strides[i] for _, strides in outer) for i in range(len(operands))),
        "".join(CONTIGUOUS if step else SCALAR for step in pattern),
    )


def _strides(shape: Sequence[int], rank: int) -> list[int]:
    """A row-major operand's strides under `rank` dimensions, 0 where it is broadcast."""
    padded = [1] * (rank - len(shape)) + list(shape)
    return [0 if n == 1 else prod(padded[d + 1 :]) for d, n in enumerate(padded)]


def map_name(tree: Expr, pattern: str) -> str:
    """A unique name for the kernel."""
    return f"map_{tree.op}_{sha256(f'{tree} {pattern}'.encode()).hexdigest()[:16]}"


def map_ir(isa: Isa, tree: Expr, pattern: str) -> str:
    """The kernel `map_name(tree, pattern)` with MapArgs. Inputs of `tree` are numbered 0, 1, ..."""
    module = Module(isa)
    _write_body(module, tree, pattern)
    with module.kernel(map_name(tree, pattern)) as f:
        _write_units(f, tree, pattern)
    return module.text()


def _write_body(module: Module, tree: Expr, pattern: str) -> None:
    """`body(x0, ..., out, n)`: n elements, a multiple of the lanes."""
    names = [f"x{i}" for i in range(len(pattern))]
    params = [(name, "ptr") for name in (*names, "out")] + [("n", "i64")]
    with module.function("body", params, attributes="noinline", is_exported=False) as f:
        *x, out, n = f.params
        rows = [DTYPES[dtype] for dtype in inputs(tree).values()]
        fixed = {}
        for i, row in enumerate(rows):
            if pattern[i] == SCALAR:
                raw = f.splat(f.load(x[i], row.memory))
                fixed[i] = widen(f, raw, row)
        first = f.const(0)
        for lanes in (_PACK * f.lanes, f.lanes) if _is_packed(tree) else (f.lanes,):
            stop = n - n % lanes
            with f.each(first, stop, lanes) as at:
                leaves = {}
                for i, row in enumerate(rows):
                    if pattern[i] == SCALAR:
                        leaves[i] = fixed[i] if lanes == f.lanes else f.shuffle(fixed[i], None, [0] * lanes)
                        continue
                    raw = f.load(f.at(x[i], at, row.memory), vector(lanes, row.memory))
                    leaves[i] = widen(f, raw, row)
                y = evaluate(f, tree, leaves, lanes)
                f.store(narrow(f, y, tree.row), f.at(out, at, tree.row.memory))
            first = stop
        f.ret()


def _is_packed(tree: Expr) -> bool:
    """Whether computing several vectors together pays: for floats converted to bytes by simple operations."""

    def is_simple(node: Expr) -> bool:
        return node.op in _SIMPLE and all(map(is_simple, node.args))

    return tree.op == "cast" and tree.dtype in ("int8", "uint8") and is_simple(tree)


def _write_units(f: Function, tree: Expr, pattern: str) -> None:
    args, lo, hi, scratch = f.params
    names = ("inner", "rows", "rank", "unit_rows", "unit_inner", "chunks", "out")
    inner, rows, rank, unit_rows, unit_inner, chunks, out = f.fields(args, MapArgs, *names)
    n_inputs = len(pattern)
    bases = [f.load(f.at(args, MapArgs.x.offset + 8 * i, "i8"), "ptr") for i in range(n_inputs)]
    memories = [DTYPES[dtype].memory for dtype in inputs(tree).values()]
    sizes = f.at(args, MapArgs.sizes.offset, "i8")
    strides = [f.at(args, MapArgs.strides.offset + 8 * MAX_OUTER * i, "i8") for i in range(n_inputs)]
    with f.each(lo, hi) as unit:
        block, chunk = unit // chunks, unit % chunks
        first = chunk * unit_inner
        n = f.least(inner - first, unit_inner)
        stop = f.least((block + 1) * unit_rows, rows)
        with f.each(block * unit_rows, stop) as row:
            moved = find_offsets(f, row, rank, sizes, strides)
            x = []
            for base, offset, memory, letter in zip(bases, moved, memories, pattern, strict=True):
                x.append(f.at(base, offset + first if letter == CONTIGUOUS else offset, memory))
            to = f.at(out, row * inner + first, tree.row.memory)
            whole = n & -f.lanes
            f.call("body", "void", *x, to, whole)
            with f.when(whole < n):
                _write_rest(f, tree, pattern, x, to, whole, n - whole, scratch)


def _write_rest(
    f: Function, tree: Expr, pattern: str, x: list[Value], out: Value, first: Value, n: Value, scratch: Value
) -> None:
    """Compute the last elements of a row, fewer than a vector, through scratch, so that no access is out of
    bounds.
    """
    memories = [DTYPES[dtype].memory for dtype in inputs(tree).values()]
    through = []
    for i, (pointer, memory, letter) in enumerate(zip(x, memories, pattern, strict=True)):
        if letter == SCALAR:
            through.append(pointer)
            continue
        slot = f.at(scratch, i * _SLOT_BYTES, "i8")
        _copy(f, f.at(pointer, first, memory), slot, n, memory)
        through.append(slot)
    slot = f.at(scratch, MAX_INPUTS * _SLOT_BYTES, "i8")
    f.call("body", "void", *through, slot, f.const(f.lanes))
    _copy(f, slot, f.at(out, first, tree.row.memory), n, tree.row.memory)


def _copy(f: Function, source: Value, target: Value, n: Value, memory: str) -> None:
    with f.each(0, n) as i:
        f.store(f.load(f.at(source, i, memory), memory), f.at(target, i, memory))
