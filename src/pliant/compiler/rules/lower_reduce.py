"""Lower reductions along axes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from pliant.compiler.executable.call import Call, FieldValue, Kernel, LoweredNode, Ref, Target
from pliant.compiler.rules.move.lower_move import optional_constant
from pliant.errors import GraphError
from pliant.ir.graph import Graph, Node
from pliant.kernels.emit.dtypes import DTYPES
from pliant.kernels.emit.expression import Expr, choose, leaf
from pliant.kernels.rows.reduce import MAX_DIMS, ReduceArgs, Reduction, plan_reduction, reduce_ir

_UNIT_ELEMENTS = 4096


@dataclass(frozen=True, slots=True)
class ReductionFormula:
    """post(combine of term): `term` of an element, `post` of the combined terms and their count."""

    term: Callable[[Expr], Expr]
    combine: str
    post: Callable[[Expr, Expr], Expr]
    needs_float: bool = False


def reduce_call(
    x: tuple[str, Sequence[int]],
    axes: Sequence[int],
    out: str,
    formula: tuple[Expr, str, Expr],
    operand: str = "",
    label: str = "",
) -> tuple[Call, ...]:
    """out = formula (term, combine, post) of x, given as (tensor, shape), along axes.

    `operand` has a value for every output. No call for an empty output. Raises GraphError if kept and reduced
    axes alternate too often.
    """
    name, shape = x
    kept = [n for d, n in enumerate(shape) if d not in axes]
    if 0 in kept:
        return ()
    way = plan_reduction(shape, axes)
    if max(len(way.kept), len(way.others)) > MAX_DIMS:
        raise GraphError(f"node {label!r} reduces more than {MAX_DIMS} separate groups of axes.")
    reduction = Reduction(*formula, way.by_columns)
    count = 1
    for d in axes:
        count *= shape[d]
    others = 1
    for size, _ in way.others:
        others *= size
    fields: dict[str, FieldValue] = {
        "x": Ref(name),
        "operand": Ref(operand) if operand else None,
        "out": Ref(out),
        "count": count,
        "n": way.fastest[0],
        "step": way.fastest[1],
        "inner": way.inner,
        "kept_rank": len(way.kept),
        "other_rank": len(way.others),
        "others": others,
        "kept_sizes": tuple(size for size, _ in way.kept),
        "kept_strides": tuple(stride for _, stride in way.kept),
        "other_sizes": tuple(size for size, _ in way.others),
        "other_strides": tuple(stride for _, stride in way.others),
    }
    work = max(1, count * min(way.inner, 256))
    reads = (name, operand) if operand else (name,)
    kernel = Kernel(reduction.name, partial(reduce_ir, reduction=reduction))
    grain = max(1, _UNIT_ELEMENTS // work)
    return (Call(kernel, ReduceArgs, fields, way.n_units, reads, (out,), grain, label=label),)


def reduction_expressions(op: str, dtype: str) -> tuple[Expr, str, Expr]:
    """Term, combination and post of one of FORMULAS for elements of `dtype`, in a sufficiently wide type."""
    recipe = FORMULAS[op]
    row = DTYPES[dtype]
    if row.kind == "bool":
        return leaf(0, dtype), "or" if recipe.combine == "max" else "and", leaf(0, dtype)
    work = "float32" if row.bits == 16 and row.kind == "float" else dtype
    if recipe.needs_float and row.kind != "float":
        work = "float64"
    term = recipe.term(leaf(0, dtype).cast(work))
    post = recipe.post(leaf(0, work), leaf(2, "int64").cast(work))
    return term, recipe.combine, post.cast(dtype)


def axes_of(node: Node, graph: Graph) -> tuple[int, ...]:
    """The axes to reduce, counted from the front; all axes by default, unless the node states otherwise."""
    rank = len(graph.types[node.inputs[0]].shape)
    given = optional_constant(node, graph, 1)
    named = tuple(given.ravel().tolist()) if given is not None else node.integers("axes", ())
    if not named:
        return () if node.flag("noop_with_empty_axes") else tuple(range(rank))
    return tuple(sorted({axis + rank if axis < 0 else axis for axis in named}))


def _lower(node: Node, graph: Graph, target: Target) -> LoweredNode:
    x, y = node.inputs[0], node.outputs[0]
    type_ = graph.types[x]
    axes = axes_of(node, graph)
    return LoweredNode(
        calls=reduce_call(
            (x, type_.shape), axes, y, reduction_expressions(node.op, type_.dtype), label=node.name
        )
    )


def _log_sum_exp(node: Node, graph: Graph, target: Target) -> LoweredNode:
    """Log-sum-exp, shifted by the maximum, which is computed first."""
    x, y = node.inputs[0], node.outputs[0]
    type_, axes, top = graph.types[x], axes_of(node, graph), f"{node.outputs[0]}@max"
    wide = accumulator_dtype(type_.dtype)
    given = (x, type_.shape)
    largest = (leaf(0, type_.dtype).cast(wide), "max", leaf(0, wide))
    shift = zero_infinite(leaf(1, wide))
    term = (leaf(0, type_.dtype).cast(wide) - shift).to("exp")
    post = (leaf(0, wide).to("ln") + shift).cast(type_.dtype)
    calls = reduce_call(given, axes, top, largest, label=node.name)
    calls += reduce_call(given, axes, y, (term, "add", post), top, node.name)
    n_bytes = graph.types[y].size * DTYPES[wide].itemsize
    return LoweredNode(calls=calls, temporaries={top: n_bytes})


def accumulator_dtype(dtype: str) -> str:
    """The float type for sums of exponentials, squares, ... of `dtype`."""
    return "float32" if dtype in ("float32", "float16", "bfloat16") else "float64"


def zero_infinite(x: Expr) -> Expr:
    """x, or 0 where it is infinite: a shift must not turn inf - inf into NaN."""
    return choose(Expr("isinf", "bool", (x,)), x.like(0), x)


def _identity(x: Expr) -> Expr:
    return x


def _total(x: Expr, count: Expr) -> Expr:
    return x


def _square(x: Expr) -> Expr:
    return x * x


FORMULAS: Mapping[str, ReductionFormula] = {
    "ReduceSum": ReductionFormula(_identity, "add", _total),
    "ReduceMean": ReductionFormula(_identity, "add", lambda x, n: x / n, needs_float=True),
    "ReduceMax": ReductionFormula(_identity, "max", _total),
    "ReduceMin": ReductionFormula(_identity, "min", _total),
    "ReduceProd": ReductionFormula(_identity, "mul", _total),
    "ReduceL1": ReductionFormula(lambda x: x.to("abs"), "add", _total),
    "ReduceL2": ReductionFormula(_square, "add", lambda x, n: x.to("sqrt"), needs_float=True),
    "ReduceLogSum": ReductionFormula(_identity, "add", lambda x, n: x.to("ln"), needs_float=True),
    "ReduceSumSquare": ReductionFormula(_square, "add", _total),
}

RULES = {**dict.fromkeys(FORMULAS, _lower), "ReduceLogSumExp": _log_sum_exp}
