"""One transformer layer at one width as a table of kernel calls. Knows shapes and order, no values."""

import ctypes
from math import sqrt

import numpy as np

from pliant.compile.arena import Arena
from pliant.compile.kernels import Kernels, Precise
from pliant.compile.weights import Weights
from pliant.kernels import attention, gemm
from pliant.kernels.attention import AttentionArgs, of_qkv
from pliant.kernels.gemm_args import ACTIVATIONS, GemmArgs
from pliant.kernels.gemm_int8 import GemmInt8Args, QuantizeArgs, units_int8
from pliant.kernels.rowwise import LayerNormArgs
from pliant.kernels.table import Table
from pliant.models.slices import GROUP_COLUMNS, MatrixGeometry, SliceGeometry
from pliant.models.spec import ModelSpec


class LayerTable:
    """QKV, attention, output, norm, up, down, norm: seven kernels over the arena (eleven in int8)."""

    def __init__(
        self,
        spec: ModelSpec,
        geometry: SliceGeometry,
        weights: Weights,
        kernels: Kernels,
        arena: Arena,
        width: int,
        n_threads: int,
        compute: Precise,
    ) -> None:
        self.table = Table()
        self._spec, self._geometry, self._weights, self._kernels = spec, geometry, weights, kernels
        self._arena, self._width, self._threads, self._compute = arena, width, n_threads, compute
        self._tokens = 0
        self._gemms: list[tuple[int, GemmArgs]] = []
        self._rows: list[int] = []
        resident = weights.resident
        qkv, output, up, down = geometry.matrices
        d, h, f = geometry.hidden, width * geometry.head_dim, width * geometry.slice_ffn
        qkv_columns = 3 * h
        self._gemm(qkv, arena.hidden, d, arena.qkv, qkv_columns, resident.qkv_bias)
        self._attention = self._attend(qkv_columns, h)
        self._gemm(output, arena.attended, h, arena.normed, d, resident.output_bias, residual=arena.hidden)
        self._norm(arena.normed, arena.normed, resident.attention_norm)
        self._gemm(up, arena.normed, d, arena.ffn, f, resident.up_bias, activation=spec.activation)
        self._gemm(down, arena.ffn, f, arena.hidden, d, resident.down_bias, residual=arena.normed)
        self._norm(arena.hidden, arena.hidden, resident.output_norm)

    def bind(self, n_tokens: int) -> None:
        """Run over `n_tokens` rows from now on."""
        if n_tokens == self._tokens:
            return
        self._tokens = n_tokens
        isa = self._kernels.isa
        for entry, args in self._gemms:
            args.n_rows = n_tokens
            if self._compute == "int8":
                self.table.resize(entry, units_int8(args.n_columns))
            else:
                n_units = gemm.units(args.n_columns, isa)
                self.table.resize(entry, n_units, gemm.grain(args.n_columns, n_tokens, isa, self._threads))
        for entry in self._rows:
            self.table.resize(entry, n_tokens, max(1, n_tokens // (4 * self._threads)))
        entry, attend = self._attention
        attend.n_rows = attend.n_tokens = n_tokens
        n_units = attention.units(self._width, n_tokens, isa)
        self.table.resize(entry, n_units, attention.grain(self._width, n_tokens, isa, self._threads))

    def _gemm(
        self,
        matrix: MatrixGeometry,
        a: np.ndarray,
        depth: int,
        c: np.ndarray,
        n_columns: int,
        bias: np.ndarray,
        *,
        residual: np.ndarray | None = None,
        activation: str | None = None,
    ) -> None:
        is_split_by_columns = matrix.name in ("qkv", "up")
        args = GemmArgs(
            a=a.ctypes.data,
            lda=depth,
            c=c.ctypes.data,
            ldc=n_columns,
            n_columns=n_columns,
            slices=self._weights.slices.ctypes.data,
            first_group=matrix.first_group,
            first_column_group=matrix.first_column_group,
            segment_rows=matrix.rows,
            n_segments=1 if is_split_by_columns else self._width,
            column_groups_per_slice=matrix.columns // GROUP_COLUMNS,
            bias=bias.ctypes.data,
            residual=residual.ctypes.data if residual is not None else None,
            ldr=n_columns,
            activation=ACTIVATIONS[activation],
        )
        if self._compute == "fp32":
            self._gemms.append((self.table.add(self._kernels.gemm, args, 1), args))
            return
        quantized, scales = self._arena.quantized, self._arena.scales
        assert quantized is not None
        assert scales is not None
        rounding = QuantizeArgs(
            a=args.a,
            lda=depth,
            n_columns=depth,
            q=quantized.ctypes.data,
            ldq=depth,
            scales=scales.ctypes.data,
        )
        self._rows.append(self.table.add(self._kernels.quantize, rounding, 1))
        args.a = quantized.ctypes.data
        whole = GemmInt8Args(gemm=args, a_scales=scales.ctypes.data, weight_scale=self._weights.scale)
        self._gemms.append((self.table.add(self._kernels.gemm_int8, whole, 1), whole.gemm))

    def _attend(self, qkv_columns: int, columns: int) -> tuple[int, AttentionArgs]:
        args = of_qkv(
            self._arena.qkv.ctypes.data,
            qkv_columns,
            self._arena.attended.ctypes.data,
            columns,
            self._spec.n_heads,
            self._geometry.head_dim,
            1 / sqrt(self._spec.head_dim),
        )
        return self.table.add(self._kernels.attention, args, 1), args

    def _norm(self, x: np.ndarray, out: np.ndarray, norm: np.ndarray) -> None:
        args = norm_args(x, out, norm, self._spec.hidden, self._geometry.hidden, self._spec.norm_eps)
        self._rows.append(self.table.add(self._kernels.layer_norm, args, 1))


def norm_args(
    x: np.ndarray, out: np.ndarray, norm: np.ndarray, n: int, n_padded: int, eps: float
) -> LayerNormArgs:
    """A layer norm of `n` columns in rows of `n_padded`; `norm` is float32 [2, >= n], weight and bias."""
    return LayerNormArgs(
        x=x.ctypes.data,
        ld_x=n_padded,
        out=out.ctypes.data,
        ld_out=n_padded,
        weight=norm[0].ctypes.data,
        bias=norm[1].ctypes.data,
        n=n,
        n_padded=n_padded,
        eps=ctypes.c_float(eps),
    )
