"""Calls of the float32 kernels over rows."""

from pliant.compiler.executable.call import Call, FieldValue, Kernel, Ref, RowExtent
from pliant.kernels.rows import rowwise


def layer_norm_call(
    x: str,
    out: str,
    affine: tuple[str, str],
    shape: tuple[int, int],
    n: int,
    epsilon: float,
    label: str = "",
    *,
    has_extent: bool = False,
) -> Call:
    """out = layer norm over the first `n` columns of x, float32 `shape`; the other columns become zero.

    `affine` are n weights and n biases; with an extent it may run over fewer rows.
    """
    rows, columns = shape
    fields: dict[str, FieldValue] = {
        **{"x": Ref(x), "ld_x": columns, "out": Ref(out), "ld_out": columns, "n": n, "n_padded": columns},
        **{"weight": Ref(affine[0]), "bias": Ref(affine[1]), "eps": epsilon},
    }
    return Call(
        kernel=Kernel(rowwise.LAYER_NORM, rowwise.layer_norm_ir),
        layout=rowwise.LayerNormArgs,
        fields=fields,
        n_units=rows,
        reads=(x, *affine),
        writes=(out,),
        grain=grain(columns),
        label=label,
        in_place=x,
        extent=RowExtent((), lambda lengths: (sum(lengths), grain(columns))) if has_extent else None,
    )


def grain(columns: int) -> int:
    """The number of rows of `columns` floats that a thread takes at once."""
    return max(1, 2048 // columns)
