"""One matrix product of views, and the same product with as many rows as its operands' strides allow."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import permutations

from pliant.compiler.rewrite.view import View
from pliant.compiler.rules.product.plane_args import PlaneMatrix
from pliant.compiler.rules.product.scaled_weights import ScaledMatrix

_MAX_FREE = 4
"""With more leading dimensions than this their order is not changed."""


@dataclass(frozen=True, slots=True)
class Product:
    """out = activation(alpha * a @ b + bias + residual), all views of one rank with equal batch shape.

    `a` [..., M, K], `b` [..., K, N], `out` and `residual` [..., M, N] with unit column stride. `bias` is a
    tensor of N elements. float32. A `coded` or `scaled` b is one matrix for a whole batch; `b` then gives its
    shape. With an extent all leading dimensions are rows, and a run may have fewer of them.
    """

    out: View
    a: View
    b: View
    bias: str | None = None
    residual: View | None = None
    activation: str | None = None
    alpha: float = 1.0
    label: str = ""
    coded: PlaneMatrix | None = None
    scaled: ScaledMatrix | None = None
    has_extent: bool = False


def with_most_rows(p: Product) -> Product:
    """The same product with its batch dimensions made rows where possible."""
    return _most_rows(_swap_column(p))


def _swap_column(p: Product) -> Product:
    """A single column of an A with contiguous columns, as a row: kernels read such a B, but would copy A."""
    is_column = p.out.shape[-1] == 1 and p.out.strides[-2] == 1
    is_bare = p.bias is None and p.residual is None and p.coded is None and p.scaled is None
    if not (is_column and is_bare and p.a.strides[-2] == 1 and p.a.shape[-2] > 1 and p.a.shape[-1] > 1):
        return p
    return replace(p, out=_transpose(p.out), a=_transpose(p.b), b=_transpose(p.a))


def _transpose(v: View) -> View:
    """The view with rows and columns exchanged."""
    rank = len(v.shape)
    return v.transposed((*range(rank - 2), rank - 1, rank - 2))


def _most_rows(p: Product) -> Product:
    """The product with as many rows as its operands' strides allow, so that B is read once for all of them.

    The dimensions along which B does not change, including rows, can have any order: a sequence-first batch
    [L, B, K] that was transposed from [B, L, K] becomes B products of L rows, not L products of B rows. An A
    whose columns are not contiguous is copied along its rows, whose order then stays.
    """
    axes = range(len(p.a.shape) - 1)
    free = [i for i in axes if (i == axes[-1] or p.b.strides[i] == 0) and p.a.shape[i] != 1]
    if len(free) > _MAX_FREE or p.a.strides[-1] != 1:
        return _fold_rows(p)
    kept = [i for i in axes if i not in free]
    orders = [axes, *((*kept, *order) for order in permutations(free) if order)]
    found = [_fold_rows(_reorder_batch(p, order)) for order in orders]
    return max(found, key=lambda q: q.a.shape[-2])  # the first of several


def _reorder_batch(p: Product, order: Sequence[int]) -> Product:
    """Leading dimension i is dimension order[i]."""
    if tuple(order) == tuple(range(len(order))):
        return p
    steps = (*p.b.strides[:-2], 0)
    lead = [p.a.shape[i] for i in order[:-1]], [steps[i] for i in order[:-1]]
    b = View(p.b.tensor, p.b.offset, (*lead[0], *p.b.shape[-2:]), (*lead[1], *p.b.strides[-2:]))
    last = len(order)
    residual = p.residual.transposed((*order, last)) if p.residual else None
    return replace(
        p, a=p.a.transposed((*order, last)), out=p.out.transposed((*order, last)), b=b, residual=residual
    )


def _fold_rows(p: Product) -> Product:
    """Batch dimensions along which B does not change become rows if A, C and the residual allow it."""
    while len(p.a.shape) > 2:
        views = [v for v in (p.a, p.out, p.residual) if v is not None]
        is_even = all(v.strides[-3] == v.strides[-2] * v.shape[-2] for v in views) or p.a.shape[-3] == 1
        is_single = p.a.shape[-2] == 1 and p.b.strides[-3] == 0
        if (p.b.strides[-3] != 0 and p.a.shape[-3] != 1) or not (is_even or is_single):
            return p
        residual = _fold_view_rows(p.residual) if p.residual else None
        b = View(
            p.b.tensor, p.b.offset, (*p.b.shape[:-3], *p.b.shape[-2:]), (*p.b.strides[:-3], *p.b.strides[-2:])
        )
        p = replace(p, out=_fold_view_rows(p.out), a=_fold_view_rows(p.a), b=b, residual=residual)
    return p


def _fold_view_rows(v: View) -> View:
    *outer, n, rows, columns = v.shape
    *outer_strides, stride, row, column = v.strides
    step = stride if rows == 1 else row
    return View(v.tensor, v.offset, (*outer, n * rows, columns), (*outer_strides, step, column))
