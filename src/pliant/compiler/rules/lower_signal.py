"""Lower operators on signals and matrices: running sums, Fourier transforms, determinants."""

from collections.abc import Mapping
from functools import partial
from math import prod
from typing import Any

import numpy as np

from pliant.compiler.executable.call import Call, Kernel, LoweredNode, PackedConstant, Ref, Target
from pliant.compiler.rules.move.copy_calls import grain_of
from pliant.compiler.rules.move.lower_move import optional_constant, require, required_constant
from pliant.errors import GraphError
from pliant.ir.graph import Graph, Node
from pliant.kernels.rows import cumulate, determinant, fourier

_FLOATS = ("float16", "bfloat16", "float32", "float64")


def _cumulate(operation: str) -> Any:
    def rule(node: Node, graph: Graph, target: Target) -> LoweredNode:
        x, y = node.inputs[0], node.outputs[0]
        type_ = graph.types[x]
        if type_.size == 0:
            return LoweredNode()
        axis = _axis(node, required_constant(node, graph, 1), len(type_.shape))
        inner = prod(type_.shape[axis + 1 :])
        n_units = prod(type_.shape[:axis]) * -(-inner // cumulate.UNIT_COLUMNS)
        name = f"cumulate_{operation}_{type_.dtype}"
        generate = partial(cumulate.cumulate_ir, name=name, dtype=type_.dtype, operation=operation)
        call = Call(
            kernel=Kernel(name, generate),
            layout=cumulate.CumulateArgs,
            fields={
                "source": Ref(x),
                "target": Ref(y),
                "n": type_.shape[axis],
                "inner": inner,
                "is_reverse": int(node.flag("reverse")),
                "is_exclusive": int(node.flag("exclusive")),
            },
            n_units=n_units,
            reads=(x,),
            writes=(y,),
            grain=grain_of(n_units, 4 * type_.n_bytes),
            label=node.name,
        )
        return LoweredNode(calls=(call,))

    return rule


def _dft(node: Node, graph: Graph, target: Target) -> LoweredNode:
    x, y = node.inputs[0], node.outputs[0]
    source, result = graph.types[x], graph.types[y]
    given = optional_constant(node, graph, 2)
    rank = len(source.shape)
    axis = rank - 2 if given is None else _axis(node, given, rank)
    is_inverse, is_onesided = (node.flag(k) for k in ("inverse", "onesided"))
    is_mirrored = is_inverse and is_onesided
    n_in, n_out = source.shape[axis], result.shape[axis]
    asked = optional_constant(node, graph, 1)
    length = n_out if not is_onesided or is_inverse else n_in if asked is None else int(asked.ravel()[0])
    inner = prod(source.shape[axis + 1 : -1])
    parts = source.shape[-1]
    require(parts in (1, 2) and result.shape[-1] in (1, 2) and axis < rank - 1, node, graph)
    return _transform(
        node,
        graph,
        n_outer=prod(source.shape[:axis]),
        length=length,
        sign=1 if is_inverse else -1,
        fields={
            "frames": 1,
            "batch_stride": n_in * inner * parts,
            "stride": inner * parts,
            "used": min(n_in, length // 2 + 1 if is_mirrored else length),
            "n": n_out,
            "inner": inner,
            "parts": parts,
            "out_parts": result.shape[-1],
            "is_mirrored": int(is_mirrored),
            "scale": 1.0 / length if is_inverse and length else 1.0,
        },
    )


def _stft(node: Node, graph: Graph, target: Target) -> LoweredNode:
    source, result = graph.types[node.inputs[0]], graph.types[node.outputs[0]]
    step, given = required_constant(node, graph, 1), optional_constant(node, graph, 3)
    window = node.inputs[2] if len(node.inputs) > 2 else ""
    if given is not None:
        length = int(given.ravel()[0])
    else:
        length = graph.types[window].shape[0] if window else source.shape[1]
    parts = source.shape[2] if len(source.shape) > 2 else 1
    require(not window or graph.types[window].shape == (length,), node, graph)
    if (result.shape[1] - 1) * int(step.ravel()[0]) + length > source.shape[1]:
        raise GraphError(f"node {node.name!r} (STFT) cuts {result} out of {source}, which is too short.")
    return _transform(
        node,
        graph,
        n_outer=result.shape[0] * result.shape[1],
        length=length,
        sign=-1,
        window=window,
        fields={
            "frames": result.shape[1],
            "batch_stride": source.shape[1] * parts,
            "frame_stride": int(step.ravel()[0]) * parts,
            "stride": parts,
            "used": length,
            "n": result.shape[2],
            "inner": 1,
            "parts": parts,
            "out_parts": 2,
            "is_mirrored": 0,
            "scale": 1.0,
        },
    )


def _transform(
    node: Node,
    graph: Graph,
    *,
    n_outer: int,
    length: int,
    sign: int,
    fields: Mapping[str, int | float],
    window: str = "",
) -> LoweredNode:
    """One call over roots of unity of that `length`, packed; `sign` is that of the exponent."""
    x, y = node.inputs[0], node.outputs[0]
    result = graph.types[y]
    _check_float(node, graph)
    if result.size == 0:
        return LoweredNode()
    angles = sign * 2 * np.pi * np.arange(length) / length
    table = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    roots, name = f"{y}.roots", f"fourier_{result.dtype}"

    def fill(memory: np.ndarray) -> None:
        memory[: table.nbytes] = table.reshape(-1).view(np.uint8)

    n_units = n_outer * int(fields["n"])
    call = Call(
        kernel=Kernel(name, partial(fourier.fourier_ir, name=name, dtype=result.dtype)),
        layout=fourier.FourierArgs,
        fields={
            "source": Ref(x),
            "target": Ref(y),
            "roots": Ref(roots),
            "window": Ref(window) if window else None,
            "length": length,
            **fields,
        },
        n_units=n_units,
        reads=(x, roots, window) if window else (x, roots),
        writes=(y,),
        grain=grain_of(n_units, result.n_bytes * length),
        label=node.name,
    )
    return LoweredNode(calls=(call,), packed={roots: PackedConstant(table.nbytes, fill)})


def _det(node: Node, graph: Graph, target: Target) -> LoweredNode:
    x, y = node.inputs[0], node.outputs[0]
    type_, n = graph.types[x], graph.types[x].shape[-1]
    _check_float(node, graph)
    name = f"determinant_{type_.dtype}"
    n_units = graph.types[y].size
    call = Call(
        kernel=Kernel(name, partial(determinant.determinant_ir, name=name, dtype=type_.dtype)),
        layout=determinant.DeterminantArgs,
        fields={"source": Ref(x), "target": Ref(y), "n": n},
        n_units=n_units,
        reads=(x,),
        writes=(y,),
        grain=grain_of(n_units, type_.n_bytes * (n + 1)),
        scratch_bytes=8 * n * n,
        label=node.name,
    )
    return LoweredNode(calls=(call,))


def _axis(node: Node, given: np.ndarray, rank: int) -> int:
    """An axis given as an input, counted from the front. Raises GraphError unless it is one of `rank`."""
    if given.size != 1 or not -rank <= int(given.ravel()[0]) < rank:
        raise GraphError(
            f"node {node.name!r} ({node.op}) has the axis {given.ravel().tolist()}, but {rank} dimensions."
        )
    return int(given.ravel()[0]) % rank


def _check_float(node: Node, graph: Graph) -> None:
    for x in node.inputs[:1]:
        if graph.types[x].dtype not in _FLOATS:
            raise GraphError(
                f"node {node.name!r} ({node.op}) has {graph.types[x]} as {x!r}; it must be a float."
            )


RULES: Mapping[str, Any] = {
    "CumSum": _cumulate("add"),
    "CumProd": _cumulate("mul"),
    "DFT": _dft,
    "STFT": _stft,
    "Det": _det,
}
