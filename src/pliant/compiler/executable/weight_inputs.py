"""Weights as inputs of graphs: descriptors of slices, biases and norms, and the place of each."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np

from pliant.arrays import Float32, UInt32
from pliant.ir.bitwidths import FULL_BITS
from pliant.ir.program import FULL
from pliant.kernels.coded import gemm
from pliant.kernels.coded.block_bf16 import decode_table_bf16
from pliant.kernels.coded.decode import decode_table, decode_table_int8, int8_step
from pliant.kernels.coded.gemm_args import BF16, F16, F32, SLICE_DTYPE
from pliant.kernels.emit.isa import Isa
from pliant.kernels.runtime.buffer import Buffer
from pliant.models.encoder.encoder_graph import ComputeDtype, n_sums
from pliant.models.slice_shapes import GROUP_COLUMNS, padded_size, slice_geometry
from pliant.models.spec import ModelSpec, Precision
from pliant.store.coding.encode_layer import ResidentLayer
from pliant.store.store_files import LinearWeights

_BIASES = ("qkv_bias", "output_bias", "up_bias", "down_bias")
FULL_CODES: Mapping[Precision, int] = {"F16": F16, "BF16": BF16, "F32": F32}
"""The value of a descriptor's `bits` for full fidelity."""


class LayerSlices:
    """The slices of one layer: SLICE_DTYPE [n_heads], and one decode table for each bitwidth.

    For int8, also the sums of its matrices' columns, which products compute once for a width and its bits.
    """

    def __init__(self, spec: ModelSpec, resident: ResidentLayer, isa: Isa, compute: ComputeDtype) -> None:
        geometry, precision = slice_geometry(spec), spec.precision
        self.resident = resident
        self._sums = np.zeros(n_sums(spec) if compute == "int8" else 0, np.int32)
        self._summed_bits: bytes | None = None
        self._step = weight_step(resident, isa)
        self._plane_bytes = geometry.plane_bytes
        self._full_bytes = geometry.full_bytes(precision)
        self._tables = decode_tables(resident, isa, compute)
        # For each number of bits, the kernel's code and the address of its table.
        self._codes = np.zeros(FULL_BITS + 1, np.int64)
        self._table_at = np.zeros(FULL_BITS + 1, np.uint64)
        for k, table in self._tables.items():
            self._codes[k], self._table_at[k] = k, table.ctypes.data
        self._codes[FULL_BITS] = FULL_CODES[precision]
        rows = resident.outlier_rows
        self.slices = np.zeros(len(rows), SLICE_DTYPE)
        self.slices["outlier_rows"] = rows.ctypes.data + rows.strides[0] * np.arange(len(rows))
        self.slices["outlier_offsets"] = resident.outlier_offsets.ctypes.data
        self.slices["outlier_values"] = resident.outlier_values.ctypes.data

    @property
    def buffers(self) -> dict[str, Buffer]:
        """The memory of a layer's inputs, by their names in its graph."""
        resident = self.resident
        at = {"slices": Buffer.of(self.slices), "step": Buffer.of(self._step)}
        at |= {"sums": Buffer.of(self._sums)} if self._sums.size else {}
        at |= {x: Buffer.of(getattr(resident, x)) for x in _BIASES}
        return (
            at
            | norm_buffers("attention_norm", resident.attention_norm)
            | norm_buffers("output_norm", resident.output_norm)
        )

    @property
    def arrays(self) -> list[np.ndarray]:
        """The arrays held besides the resident part of the store, for measurement."""
        return [*self._tables.values(), self.slices, self._step, self._sums, self._codes, self._table_at]

    def place(self, part: int, first: int, count: int, memory: Buffer, offset: int = 0) -> None:
        """Set the addresses of slices `first` .. `first + count - 1` of `part`, which are adjacent from
        `offset` on.
        """
        size = self._full_bytes if part == FULL else self._plane_bytes
        if offset < 0 or offset + size * count > memory.n_bytes:
            raise ValueError(f"{count} slices of {size} bytes from {offset} on are not in {memory}.")
        at = memory.address + offset + size * np.arange(count, dtype=np.uint64)
        if part == FULL:
            self.slices["full"][first : first + count] = at
        else:
            self.slices["planes"][first : first + count, part] = at

    def set_bits(self, bits: Sequence[int] | np.ndarray) -> None:
        """Set the bits of the leading slices, each 1..6 or 32."""
        row = np.asarray(bits)
        self.slices["bits"][: len(row)] = self._codes[row]
        self.slices["table"][: len(row)] = self._table_at[row]

    @contextmanager
    def column_sums(self, width: int) -> Iterator[None]:
        """For a run of the leading `width` slices: it reads the columns' sums of the run before if that had
        the same bits, and computes them otherwise.

        The sums follow from the store's planes and the bits: it does not matter where the planes are.
        """
        if not self._sums.size:
            yield
            return
        bits = self.slices["bits"][:width].tobytes()
        self._sums[0] = bits == self._summed_bits
        self._summed_bits = None  # after an interrupt there are no sums
        yield
        self._summed_bits = bits


def weight_step(resident: ResidentLayer, isa: Isa) -> Float32[np.ndarray, "1"]:
    """The value of one int8 step of a layer's weights in integer products."""
    book = resident.codebooks[max(resident.codebooks)]
    return np.array([int8_step(book, resident.outlier_values, isa)], np.float32)


def decode_tables(resident: ResidentLayer, isa: Isa, compute: str) -> Mapping[int, np.ndarray]:
    """The lookup tables of a layer by bits, in the layout for kernels of `isa`."""
    step = float(weight_step(resident, isa)[0])
    forms: Mapping[str, Callable[[np.ndarray, int, Isa], np.ndarray]] = {
        "fp32": decode_table_bf16 if isa.has_tiles else decode_table,
        "bf16": decode_table_bf16,
        "int8": partial(decode_table_int8, step=step),
    }
    made = forms[compute]
    return {k: made(book, k, isa) for k, book in resident.codebooks.items()}


@dataclass(frozen=True, slots=True, eq=False)
class PlainArrays:
    """A linear layer as one slice at full fidelity, padded with zeros to whole groups."""

    packed: np.ndarray
    bias: Float32[np.ndarray, " columns"]
    outlier_rows: UInt32[np.ndarray, " column_groups_and_one"]


def plain_arrays(linear: LinearWeights) -> PlainArrays:
    """The arrays that kernels read for a linear layer."""
    n_out, n_in = linear.weight.shape
    matrix = np.zeros((padded_size(n_in), padded_size(n_out)), np.float32)
    matrix[:n_in, :n_out] = linear.weight.T
    bias = np.zeros(padded_size(n_out), np.float32)
    bias[:n_out] = linear.bias
    return PlainArrays(gemm.pack(matrix), bias, np.zeros(padded_size(n_out) // GROUP_COLUMNS + 1, np.uint32))


class PlainWeights:
    """A linear layer with its descriptor."""

    def __init__(self, name: str, linear: LinearWeights) -> None:
        self._name, self._plain = name, plain_arrays(linear)
        self._slices = np.zeros(1, SLICE_DTYPE)
        self._slices["bits"], self._slices["full"] = F32, self._plain.packed.ctypes.data
        self._slices["outlier_rows"] = self._plain.outlier_rows.ctypes.data

    @property
    def arrays(self) -> list[np.ndarray]:
        """The arrays held besides the layer of the store, for measurement."""
        plain = self._plain
        return [plain.packed, plain.bias, plain.outlier_rows, self._slices]

    @property
    def buffers(self) -> dict[str, Buffer]:
        """The memory of its inputs, by their names in a graph."""
        return {
            f"{self._name}.slices": Buffer.of(self._slices),
            f"{self._name}.bias": Buffer.of(self._plain.bias),
        }


def plain_bytes(linear: LinearWeights) -> int:
    """Bytes of the arrays of `PlainWeights`, before they are made."""
    rows, columns = padded_size(linear.weight.shape[1]), padded_size(linear.weight.shape[0])
    return 4 * (rows * columns + columns + columns // GROUP_COLUMNS + 1) + SLICE_DTYPE.itemsize


def norm_buffers(name: str, norm: np.ndarray) -> dict[str, Buffer]:
    """The memory of a norm's inputs: `norm` is float32 [2, >= n], weights and biases."""
    return {f"{name}.weight": Buffer.of(norm[0]), f"{name}.bias": Buffer.of(norm[1])}
