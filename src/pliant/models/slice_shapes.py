"""How a layer is cut into slices and groups (STI Table 1).

A slice is one attention head plus 1/M of the FFN neurons. It holds four matrices, in this order,
each as [K, N] (input rows by output columns), zero-padded to whole groups of 32 rows by 16 columns:

    qkv   [hidden, 3 * head_dim]   columns of query, then key, then value of this head
    output[head_dim, hidden]
    up    [hidden, slice_ffn]
    down  [slice_ffn, hidden]

A matrix is a sequence of column groups (16 columns each); a column group is its row groups in order.
"""

from dataclasses import dataclass
from typing import Literal

from pliant.models.spec import ModelSpec, Precision

GROUP_ROWS = 32
GROUP_COLUMNS = 16
GROUP = GROUP_ROWS * GROUP_COLUMNS
PLANE_GROUP_BYTES = GROUP // 8
PRECISION_BYTES: dict[Precision, int] = {"F32": 4, "F16": 2, "BF16": 2}

MatrixName = Literal["qkv", "output", "up", "down"]


@dataclass(frozen=True, slots=True)
class MatrixGeometry:
    """One matrix of a slice: padded shape [rows, columns] and the index of its first group in the slice."""

    name: MatrixName
    rows: int
    columns: int
    first_group: int
    first_column_group: int

    @property
    def row_groups(self) -> int:
        return self.rows // GROUP_ROWS

    @property
    def column_groups(self) -> int:
        return self.columns // GROUP_COLUMNS

    @property
    def groups(self) -> int:
        return self.row_groups * self.column_groups


@dataclass(frozen=True, slots=True)
class SliceGeometry:
    """Padded sizes of one slice; every slice of a model has the same."""

    hidden: int  # padded to 32
    head_dim: int  # padded to 32
    slice_ffn: int  # padded to 32
    matrices: tuple[MatrixGeometry, MatrixGeometry, MatrixGeometry, MatrixGeometry]

    @property
    def groups(self) -> int:
        return sum(m.groups for m in self.matrices)

    @property
    def column_groups(self) -> int:
        return sum(m.column_groups for m in self.matrices)

    @property
    def plane_bytes(self) -> int:
        """Bytes of one bit-plane of one slice."""
        return self.groups * PLANE_GROUP_BYTES

    def full_bytes(self, precision: Precision) -> int:
        """Bytes of one slice at the checkpoint's own precision."""
        return self.groups * GROUP * PRECISION_BYTES[precision]


def slice_geometry(spec: ModelSpec) -> SliceGeometry:
    """The padded geometry of one slice of `spec`."""
    d, h, f = (padded_size(n) for n in (spec.hidden, spec.head_dim, spec.slice_ffn))
    shapes: tuple[tuple[MatrixName, int, int], ...] = (
        ("qkv", d, 3 * h),
        ("output", h, d),
        ("up", d, f),
        ("down", f, d),
    )
    matrices = []
    group = column_group = 0
    for name, rows, columns in shapes:
        m = MatrixGeometry(name, rows, columns, group, column_group)
        matrices.append(m)
        group += m.groups
        column_group += m.column_groups
    return SliceGeometry(d, h, f, (matrices[0], matrices[1], matrices[2], matrices[3]))


def padded_size(n: int) -> int:
    """`n` rounded up to whole groups."""
    return -(-n // GROUP_ROWS) * GROUP_ROWS
