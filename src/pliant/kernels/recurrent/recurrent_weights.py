"""Interleave a recurrent layer's weights and biases by gate: with numpy, or with a kernel at run time."""

import ctypes
from dataclasses import dataclass
from functools import partial

import numpy as np

from pliant.arrays import Float
from pliant.kernels.emit.builder import Function, Module
from pliant.kernels.emit.isa import Isa
from pliant.kernels.emit.values import Value
from pliant.kernels.recurrent.recurrent_args import LANES

INTERLEAVE = "recurrent_interleave"


class InterleaveArgs(ctypes.Structure):
    """out[direction][block][gate][k][16] from w[direction][rows][depth], whose rows are gates of `hidden`.

    Gates first_gate .. first_gate + gates - 1 are copied; blocks are `block_step` floats apart in out.
    Elements without a source are zero. With `adds`, values are added to those present. A unit is a block of a
    direction.
    """

    _fields_ = (
        ("w", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        *[
            (name, ctypes.c_int64)
            for name in (
                "rows",
                "depth",
                "padded_depth",
                "hidden",
                "blocks",
                "first_gate",
                "gates",
                "block_step",
                "adds",
            )
        ],
    )


@dataclass(frozen=True, slots=True)
class Interleaving:
    """The mapping of a matrix's gates to the first of `block_gates` gates of each block."""

    hidden: int
    depth: int
    padded_depth: int
    first_gate: int
    gates: int
    block_gates: int

    @property
    def blocks(self) -> int:
        return -(-self.hidden // LANES)

    @property
    def block_floats(self) -> int:
        return self.block_gates * self.padded_depth * LANES

    def fields(self, rows: int) -> dict[str, int]:
        """The fields of InterleaveArgs except addresses and `adds`; `rows` is that of w in one direction."""
        return {
            "rows": rows,
            "depth": self.depth,
            "padded_depth": self.padded_depth,
            "hidden": self.hidden,
            "blocks": self.blocks,
            "first_gate": self.first_gate,
            "gates": self.gates,
            "block_step": self.block_floats,
        }


def interleave(w: Float[np.ndarray, "directions rows depth"], how: Interleaving) -> Float[np.ndarray, "..."]:
    """The interleaved array, flat within each direction."""
    n, _, depth = w.shape
    first = how.first_gate * how.hidden
    taken = w[:, first : first + how.gates * how.hidden].reshape(n, how.gates, how.hidden, depth)
    padded = np.zeros((n, how.block_gates, how.blocks * LANES, how.padded_depth), np.float32)
    padded[:, : how.gates, : how.hidden, :depth] = taken
    blocks = padded.reshape(n, how.block_gates, how.blocks, LANES, how.padded_depth)
    return np.ascontiguousarray(blocks.transpose(0, 2, 1, 4, 3)).reshape(n, -1)


def interleave_ir(isa: Isa) -> str:
    """`recurrent_interleave` with InterleaveArgs."""
    module = Module(isa)
    with module.kernel(INTERLEAVE) as f:
        args, lo, hi, _ = f.params
        w, out, rows, depth, padded_depth, hidden, blocks = f.fields(
            args, InterleaveArgs, "w", "out", "rows", "depth", "padded_depth", "hidden", "blocks"
        )
        first_gate, gates, block_step, adds = f.fields(
            args, InterleaveArgs, "first_gate", "gates", "block_step", "adds"
        )
        zero = f.const(0.0, "float")
        with f.each(lo, hi) as unit:
            source = f.at(w, unit // blocks * rows * depth)
            to = f.at(out, unit * block_step)
            with f.each(0, gates) as gate, f.each(0, LANES) as lane, f.each(0, padded_depth) as k:
                cell = unit % blocks * LANES + lane
                exists = (cell < hidden) & (k < depth)
                row = (first_gate + gate) * hidden + cell
                place = f.select(exists, row * depth + k, f.const(0))
                value = f.select(exists, f.load(f.at(source, place)), zero)
                at = f.at(to, (gate * padded_depth + k) * LANES + lane)
                before = f.choose(adds.compare("ne", 0), partial(_loaded, f, at), lambda: [zero])[0]
                f.store(before + value, at)
    return module.text()


def _loaded(f: Function, at: Value) -> list[Value]:
    return [f.load(at)]
