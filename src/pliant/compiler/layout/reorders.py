"""The nodes that convert a tensor from one layout to another."""

import numpy as np

from pliant.compiler.layout.layout_problem import Layout
from pliant.compiler.layout.layouts import gap_of, has_gap, permutation_between, physical_type, without_gap
from pliant.compiler.layout.operator_family import NodeReplacement
from pliant.ir.graph import Node, TensorType


def reorder(x: str, y: str, type_: TensorType, have: Layout, want: Layout) -> NodeReplacement:
    """`y` is `x`, a tensor of `type_` in layout `have`, in layout `want`.

    A gap between rows is sliced off before the transpose, and padded in after it.
    """
    nodes: list[Node] = []
    constants: dict[str, np.ndarray] = {}
    types: dict[str, TensorType] = {}
    last = len(type_.shape) - 1
    perm = permutation_between(have, want)
    is_moved = perm != tuple(range(last + 1))
    if has_gap(have):
        name = f"{y}.dense" if is_moved or has_gap(want) else y
        types[name] = physical_type(type_, without_gap(have))
        ends = types[name].shape[-1]
        numbers = {f"{y}.start": [0], f"{y}.end": [ends], f"{y}.axis": [last]}
        constants |= {k: np.array(v, np.int64) for k, v in numbers.items()}
        nodes.append(Node("Slice", (x, *numbers), (name,), {}, y))
        x = name
    if is_moved or not (has_gap(have) or has_gap(want)):
        name = f"{y}.moved" if has_gap(want) else y
        types[name] = physical_type(type_, without_gap(want))
        nodes.append(Node("Transpose", (x,), (name,), {"perm": perm}, y))
        x = name
    if has_gap(want):
        # Not `pads`: the plain loops of a convolution that makes `y` pad its input by that name.
        constants[f"{y}.gap"] = np.array([0] * (2 * last + 1) + [gap_of(type_, want)], np.int64)
        nodes.append(Node("Pad", (x, f"{y}.gap"), (y,), {}, y))
    types.pop(y, None)
    return NodeReplacement(tuple(nodes), constants, types)
