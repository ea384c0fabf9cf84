"""Lower Einsum: its letters become dimensions of views.

Two float32 operands whose letters divide into batch, rows, columns and depth are a matrix product; everything
else uses the kernel for any strides.
"""

from pliant.compiler.executable.call import LoweredNode, Target
from pliant.compiler.rewrite.view import View, whole_view
from pliant.compiler.rules.product.product import Product
from pliant.compiler.rules.product.product_calls import lower_contraction, lower_product
from pliant.errors import GraphError
from pliant.ir.graph import Graph, Node
from pliant.kernels.product.contract import MAX_OPERANDS, OUT_DIMS, SUM_DIMS

_DOTS = "..."


def _einsum(node: Node, graph: Graph, target: Target) -> LoweredNode:
    label, y = node.label, node.outputs[0]
    shapes = [graph.types[x].shape for x in node.inputs]
    terms, result = _parse(node.text("equation"), shapes, label)
    sizes: dict[str, int] = {}
    for letters, shape in zip(terms, shapes, strict=True):
        for letter, n in zip(letters, shape, strict=True):
            if sizes.get(letter, 1) not in (1, n) and n != 1:
                raise GraphError(f"node {label!r}: {letter!r} stands for {sizes[letter]} and for {n}.")
            sizes[letter] = max(n, sizes.get(letter, 1)) if 0 not in (n, sizes.get(letter, 1)) else 0
    summed = [c for c in sizes if c not in result]
    views = [
        _split_letters(whole_view(x, graph.types[x]), letters, [*result, *summed], sizes)
        for x, letters in zip(node.inputs, terms, strict=True)
    ]
    out = View(y, 0, tuple(sizes[c] for c in result), graph.types[y].strides)
    if graph.types[y].dtype == "float32" and len(views) == 2:
        product = _as_product(out, views, label)
        if product is not None:
            return lower_product(product, dict(graph.constants), target)
    if len(result) > OUT_DIMS or len(summed) > SUM_DIMS or len(views) > MAX_OPERANDS:
        raise GraphError(
            f"node {label!r}: {len(views)} operands over {len(result)} + {len(summed)} letters; kernels "
            f"take {MAX_OPERANDS} over {OUT_DIMS} + {SUM_DIMS}."
        )
    if not result:
        out, views = _add_row(out), [_add_row(v) for v in views]
    return lower_contraction(out, tuple(views), graph.types[y].dtype, label=label)


def _parse(equation: str, shapes: list[tuple[int, ...]], label: str) -> tuple[list[list[str]], list[str]]:
    """The letters of every operand and of the result; dimensions of an ellipsis are numbered from the
    last.
    """
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(shapes):
        raise GraphError(f"node {label!r}: {equation!r} names {len(terms)} operands, not {len(shapes)}.")
    most = 0
    letters = []
    for term, shape in zip(terms, shapes, strict=True):
        head, dots, tail = term.partition(_DOTS)
        n = len(shape) - len(head) - len(tail)
        if n < 0 or (n and not dots):
            raise GraphError(f"node {label!r}: {term!r} does not name the {len(shape)} dimensions it has.")
        most = max(most, n)
        letters.append([*head, *(f".{i}" for i in range(n, 0, -1)), *tail])
    dotted = [f".{i}" for i in range(most, 0, -1)]
    if arrow:
        head, dots, tail = right.partition(_DOTS)
        return letters, [*head, *(dotted if dots else []), *tail]
    named = [c for term in letters for c in term if not c.startswith(".")]
    return letters, [*dotted, *sorted(c for c in set(named) if named.count(c) == 1)]


def _split_letters(v: View, letters: list[str], order: list[str], sizes: dict[str, int]) -> View:
    """The operand with a dimension for each letter; a repeated letter selects a diagonal."""
    strides = dict.fromkeys(order, 0)
    for letter, n, stride in zip(letters, v.shape, v.strides, strict=True):
        strides[letter] += stride if n == sizes[letter] else 0
    return View(v.tensor, v.offset, tuple(sizes[c] for c in order), tuple(strides.values()))


def _as_product(out: View, views: list[View], label: str) -> Product | None:
    """a [batch, rows, depth] @ b [batch, depth, columns], if the result's letters allow it."""
    a, b = views
    n = len(out.shape)
    if 0 in a.shape or n < 1:
        return None
    depth = list(range(n, len(a.shape)))
    if len(depth) != 1 or not all(v.strides[depth[0]] for v in views if v.shape[depth[0]] > 1):
        return None
    if a.strides[n - 1] and a.shape[n - 1] > 1:  # the last letter belongs to the right operand
        a, b = b, a
    if a.strides[n - 1] and a.shape[n - 1] > 1:
        return None
    rows = next((d for d in range(n - 2, -1, -1) if b.strides[d] == 0 and out.shape[d] > 1), None)
    order = [d for d in range(n - 1) if d != rows]

    def matrix(v: View, *last: int | None) -> View:
        dims: list[int | None] = [*order, *last]
        shape = tuple(1 if d is None else v.shape[d] for d in dims)
        return View(v.tensor, v.offset, shape, tuple(0 if d is None else v.strides[d] for d in dims))

    k = depth[0]
    return Product(matrix(out, rows, n - 1), matrix(a, rows, k), matrix(b, k, n - 1), label=label)


def _add_row(v: View) -> View:
    return View(v.tensor, v.offset, (1, *v.shape), (0, *v.strides))


RULES = {"Einsum": _einsum}
