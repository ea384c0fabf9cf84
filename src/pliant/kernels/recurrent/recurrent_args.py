"""The arguments of a recurrent kernel: its C structure and its compile-time form."""

import ctypes
from dataclasses import dataclass
from typing import Literal

CellVariant = Literal["lstm", "gru", "gru_reset_before", "rnn"]
"""`gru` applies the reset gate after the product (linear_before_reset), `gru_reset_before` before it."""

LANES = 16
"""Hidden units per block, whose gates are adjacent."""

GATES: dict[CellVariant, int] = {"lstm": 4, "gru": 3, "gru_reset_before": 3, "rnn": 1}


class RecurrentArgs(ctypes.Structure):
    """One or two directions over a batch of sequences; float32, strides in floats, inner dimension dense.

    With `starts`, int32, the sequences are concatenated without padding: step t of sequence b is row
    starts[b] + t of `pre` and `y`, whose rows are pre_t and y_t floats apart. `lengths` are then given, the
    longest first, and a step computes only the sequences that have not ended.

    `pre` are the inputs' products with biases, rows [block][gate][16] of `pre_d` floats for each direction;
    the row of step t and sequence b is t * pre_t + b * pre_b floats away. `weights` are
    [direction][block][gate][depth][16], for gru_reset_before two such arrays, of two gates and of one.
    `hidden_bias` [direction][block * 16] is added to the reset product; `peepholes` are
    [direction][block][3 * 16]. `lengths` are int32 for each sequence. All pointers except `pre` and `weights`
    may be null, including outputs.

    A crew has up to `unit_rows` sequences of one direction, every `row_blocks`-th of the batch: directions
    from `first_direction` on; an odd one runs backwards, the first one if `backward`. It has `members`, which
    take `shares` of each product, and shares `memory`. There are `hidden` units, in blocks of 16.
    """

    _fields_ = (
        ("pre", ctypes.c_void_p),
        ("weights", ctypes.c_void_p),
        ("late_weights", ctypes.c_void_p),
        ("hidden_bias", ctypes.c_void_p),
        ("peepholes", ctypes.c_void_p),
        ("lengths", ctypes.c_void_p),
        ("starts", ctypes.c_void_p),
        ("initial_h", ctypes.c_void_p),
        ("initial_c", ctypes.c_void_p),
        ("y", ctypes.c_void_p),
        ("y_h", ctypes.c_void_p),
        ("y_c", ctypes.c_void_p),
        ("memory", ctypes.c_void_p),
        *[
            (name, ctypes.c_int64)
            for name in (
                "steps",
                "batch",
                "hidden",
                "blocks",
                "unit_rows",
                "row_blocks",
                "members",
                "shares",
                "first_direction",
                "backward",
                "pre_t",
                "pre_b",
                "pre_d",
                "y_t",
                "y_b",
                "y_d",
                "state_b",
                "state_d",
                "couples_gates",
            )
        ],
        ("clip", ctypes.c_float),
        *[(f"{name}{i}", ctypes.c_float) for name in ("alpha", "beta") for i in range(3)],
    )


@dataclass(frozen=True, slots=True)
class RecurrentForm:
    """The compile-time parameters of a recurrent kernel: the cell and its one to three activations."""

    cell: CellVariant
    activations: tuple[str, ...]

    @property
    def name(self) -> str:
        return "_".join([self.cell, *self.activations])

    @property
    def gates(self) -> int:
        return GATES[self.cell]

    @property
    def passes(self) -> tuple[int, ...]:
        """Gates of each product over all hidden units in a step."""
        return (2, 1) if self.cell == "gru_reset_before" else (self.gates,)
