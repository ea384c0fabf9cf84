"""A constant matrix in k-bit codes, as the arguments of kernels that decode it.

It takes five of a node's inputs: planes, codebook, outlier rows, offsets and values, with attributes
`segment_rows`, `n_segments` and `largest` (see store.matrix.CodedMatrix).
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pliant.arrays import Int32
from pliant.compiler.executable.call import FieldValue, PackedConstant, Ref
from pliant.ir.graph import Graph, Node
from pliant.kernels.coded.block_bf16 import decode_table_bf16
from pliant.kernels.coded.decode import decode_table, decode_table_int8, round_to_steps
from pliant.kernels.coded.int8_form import int8_form
from pliant.kernels.emit.isa import Isa
from pliant.models.slice_shapes import GROUP_COLUMNS, GROUP_ROWS, PLANE_GROUP_BYTES
from pliant.store.coding.planes import unpack_planes

N_INPUTS = 5


@dataclass(frozen=True, slots=True)
class PlaneMatrix:
    """The five tensors by name, and how the matrix is cut."""

    tensors: tuple[str, ...]
    bits: int
    plane_bytes: int  # with padding of less than a column group
    segment_rows: int
    n_segments: int
    largest: float

    @property
    def depth(self) -> int:
        """K with its padding."""
        return self.segment_rows * self.n_segments

    @property
    def column_groups(self) -> int:
        return self.plane_bytes // PLANE_GROUP_BYTES * GROUP_ROWS // self.depth

    @property
    def reads(self) -> tuple[str, ...]:
        """Tensors that kernels read: not the codebook, which is replaced by a table."""
        planes, _, *outliers = self.tensors
        return (planes, *outliers)

    def fields(self, table: str, prefix: str = "") -> dict[str, FieldValue]:
        """The fields of GemmArgs that describe B; the decode table is called `table`."""
        planes, _, rows, offsets, values = self.tensors
        places = tuple(Ref(planes, q * self.plane_bytes) if q < self.bits else None for q in range(6))
        fields: dict[str, FieldValue] = {
            **{"segment_rows": self.segment_rows, "n_segments": self.n_segments},
            "column_groups_per_slice": self.column_groups,
            **{"own.bits": self.bits, "own.planes": places, "own.table": Ref(table)},
            **{"own.outlier_rows": Ref(rows), "own.outlier_offsets": Ref(offsets)},
            "own.outlier_values": Ref(values),
        }
        return {f"{prefix}{name}": value for name, value in fields.items()}


def planes_of(node: Node, graph: Graph, first: int) -> PlaneMatrix:
    """The matrix whose tensors begin at input `first` of a node."""
    tensors = node.inputs[first : first + N_INPUTS]
    bits, plane_bytes = graph.types[tensors[0]].shape
    segment_rows, n_segments = node.integer("segment_rows"), node.integer("n_segments")
    return PlaneMatrix(tensors, bits, plane_bytes, segment_rows, n_segments, node.real("largest"))


def pack_table(planes: PlaneMatrix, codebook: np.ndarray, isa: Isa) -> tuple[str, PackedConstant]:
    """The table that decodes to float32, and its name."""
    table = decode_table(codebook, planes.bits, isa)
    return f"{planes.tensors[0]}|table", _pack(table)


def pack_table_bf16(planes: PlaneMatrix, codebook: np.ndarray, isa: Isa) -> tuple[str, PackedConstant]:
    """The table that decodes to bfloat16, and its name."""
    return f"{planes.tensors[0]}|table16", _pack(decode_table_bf16(codebook, planes.bits, isa))


def pack_int8(
    planes: PlaneMatrix, constants: Mapping[str, np.ndarray], isa: Isa
) -> dict[str, PackedConstant]:
    """Table, step and column sums for GemmInt8Args, by name."""
    names = [f"{planes.tensors[0]}|{kind}" for kind in ("table8", "step", "sums8")]
    step = np.float32(planes.largest / int8_form(isa).steps or 1.0)
    table = decode_table_int8(constants[planes.tensors[1]], planes.bits, isa, float(step))
    columns = planes.column_groups * GROUP_COLUMNS

    def fill_sums(memory: np.ndarray) -> None:
        most = int8_form(isa).most_steps(planes.depth)
        memory.view(np.int32)[:] = _column_sums(planes, constants, float(step), most)

    made = (_pack(table), _pack(np.array([step]).view(np.uint8)), PackedConstant(4 * columns, fill_sums))
    return dict(zip(names, made, strict=True))


def _column_sums(
    planes: PlaneMatrix, constants: Mapping[str, np.ndarray], step: float, most: int
) -> Int32[np.ndarray, " columns"]:
    """Sums over K of the weights in steps as kernels decode them, with padding and clipped outliers."""
    coded, codebook, rows, offsets, values = (constants[x] for x in planes.tensors)
    groups = coded.reshape(planes.bits, -1, PLANE_GROUP_BYTES)
    codes = unpack_planes(groups[:, : planes.column_groups * planes.depth // GROUP_ROWS])
    of_codes = round_to_steps(codebook, step)
    blocks = of_codes[codes].reshape(planes.n_segments, -1, planes.segment_rows, GROUP_COLUMNS)
    sums = blocks.sum(2, dtype=np.int32).reshape(planes.n_segments, -1)
    place = np.repeat(np.arange(rows.size - 1), np.diff(rows.astype(np.int64)).astype(np.int64))
    segment, group = np.divmod(place, blocks.shape[1])
    steps = np.clip(values.astype(np.float32) * (np.float32(1) / np.float32(step)), -most, most)
    more = np.rint(steps).astype(np.int32) - of_codes[0]
    used = slice(int(rows[0]), int(rows[-1]))
    np.add.at(sums, (segment, group * GROUP_COLUMNS + offsets[used] % GROUP_COLUMNS), more[used])
    total: np.ndarray = sums.sum(0, dtype=np.int32)
    return total


def _pack(values: np.ndarray) -> PackedConstant:
    def fill(memory: np.ndarray) -> None:
        memory[:] = values

    return PackedConstant(values.nbytes, fill)
