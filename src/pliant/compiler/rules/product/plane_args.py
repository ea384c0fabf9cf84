"""A constant matrix in k-bit codes, as the arguments of kernels that decode it.

Among a node's inputs it stands as five: planes, codebook, outlier rows, offsets and values, with attributes
`segment_rows`, `n_segments` and `largest` (see store.matrix.CodedMatrix).
"""

from dataclasses import dataclass

import numpy as np

from pliant.compiler.executable.call import Field, Packed, Ref
from pliant.ir.graph import Graph, Node
from pliant.kernels.coded.decode import decode_table, decode_table_int8
from pliant.kernels.coded.int8_form import int8_form
from pliant.kernels.emit.isa import Isa
from pliant.models.slice_shapes import GROUP_ROWS, PLANE_GROUP_BYTES

N_INPUTS = 5


@dataclass(frozen=True, slots=True)
class Planes:
    """The five tensors by name, and how the matrix is cut."""

    tensors: tuple[str, ...]
    bits: int
    plane_bytes: int
    segment_rows: int
    n_segments: int
    largest: float

    @property
    def depth(self) -> int:
        """K with its padding."""
        return self.segment_rows * self.n_segments

    @property
    def reads(self) -> tuple[str, ...]:
        """What kernels read: not the codebook, of which there is a table."""
        planes, _, *outliers = self.tensors
        return (planes, *outliers)

    def fields(self, table: str, prefix: str) -> dict[str, Field]:
        """Of GemmArgs, all that describes B, where the decode table is called `table`."""
        planes, _, rows, offsets, values = self.tensors
        places = tuple(Ref(planes, q * self.plane_bytes) if q < self.bits else None for q in range(6))
        groups = self.plane_bytes // PLANE_GROUP_BYTES
        fields: dict[str, Field] = {
            **{"segment_rows": self.segment_rows, "n_segments": self.n_segments},
            "column_groups_per_slice": groups * GROUP_ROWS // self.depth,
            **{"own.bits": self.bits, "own.planes": places, "own.table": Ref(table)},
            **{"own.outlier_rows": Ref(rows), "own.outlier_offsets": Ref(offsets)},
            "own.outlier_values": Ref(values),
        }
        return {f"{prefix}.{name}": value for name, value in fields.items()}


def planes_of(node: Node, graph: Graph, first: int) -> Planes:
    """The matrix whose tensors begin at input `first` of a node."""
    tensors = node.inputs[first : first + N_INPUTS]
    bits, plane_bytes = graph.types[tensors[0]].shape
    segment_rows, n_segments = node.integer("segment_rows"), node.integer("n_segments")
    return Planes(tensors, bits, plane_bytes, segment_rows, n_segments, node.real("largest"))


def pack_table(planes: Planes, codebook: np.ndarray, isa: Isa) -> tuple[str, Packed]:
    """The table that decodes to float32, and its name."""
    table = decode_table(codebook, planes.bits, isa)
    return f"{planes.tensors[0]}|table", _packed(table)


def pack_table_int8(planes: Planes, codebook: np.ndarray, isa: Isa) -> dict[str, Packed]:
    """The table that decodes to steps of int8, and GemmInt8Args.weight_step, by names that end so."""
    form = int8_form(isa)
    # The kernel takes a step to be 127 / form.centroid of this.
    scale = np.float32(planes.largest / min(form.weight, 127) * form.centroid / 127 or 1.0)
    table = decode_table_int8(codebook, planes.bits, isa, float(scale))
    name = planes.tensors[0]
    return {f"{name}|table8": _packed(table), f"{name}|step": _packed(np.array([scale]).view(np.uint8))}


def _packed(values: np.ndarray) -> Packed:
    def fill(memory: np.ndarray) -> None:
        memory[:] = values

    return Packed(values.nbytes, fill)
