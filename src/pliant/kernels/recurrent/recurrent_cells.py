"""The cells of LSTM, GRU and RNN: from a step's sums to its state."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial

from pliant.kernels.emit import elementary, vmath
from pliant.kernels.emit.builder import Function, Module
from pliant.kernels.emit.isa import Isa
from pliant.kernels.emit.values import Value
from pliant.kernels.recurrent.recurrent_args import LANES, RecurrentArgs, RecurrentForm

CellActivation = Callable[[Function, Value, Value, Value], Value]
"""(function, x, alpha, beta) -> y, the parameters in every lane."""


def _thresholded_relu(f: Function, x: Value, alpha: Value, beta: Value) -> Value:
    return f.select(x <= alpha, f.const(0.0, x.type), x)


def _hard_sigmoid(f: Function, x: Value, alpha: Value, beta: Value) -> Value:
    y = x * alpha + beta
    y = f.select(y < 0.0, f.const(0.0, x.type), y)
    return f.select(y > 1.0, f.const(1.0, x.type), y)


def _elu(f: Function, x: Value, alpha: Value, beta: Value) -> Value:
    return f.select(x < 0.0, alpha * elementary.expm1(f, x), x)


ACTIVATIONS: dict[str, tuple[CellActivation, float, float]] = {
    "relu": (lambda f, x, a, b: vmath.relu(f, x), 0.0, 0.0),
    "tanh": (lambda f, x, a, b: vmath.tanh(f, x), 0.0, 0.0),
    "sigmoid": (lambda f, x, a, b: elementary.sigmoid(f, x), 0.0, 0.0),
    "affine": (lambda f, x, a, b: x * a + b, 1.0, 0.0),
    "leakyrelu": (lambda f, x, a, b: f.select(x < 0.0, x * a, x), 0.01, 0.0),
    "thresholdedrelu": (_thresholded_relu, 1.0, 0.0),
    "scaledtanh": (lambda f, x, a, b: a * vmath.tanh(f, x * b), 1.0, 1.0),
    "hardsigmoid": (_hard_sigmoid, 0.2, 0.5),
    "elu": (_elu, 1.0, 0.0),
    "softsign": (lambda f, x, a, b: x / (vmath.magnitude(f, x) + 1.0), 0.0, 0.0),
    "softplus": (lambda f, x, a, b: elementary.softplus(f, x), 0.0, 0.0),
}
"""ONNX's names in lower case: the function and its default parameters."""

BoundActivation = Callable[[Value], Value]
"""An activation with its parameters, after clipping."""


@dataclass(frozen=True, slots=True)
class CellArgs:
    """Addresses of one vector of hidden units.

    The kernel's arguments, the gates' sums (LANES apart), h before and after, c, GRU's update gate and reset
    state, the inputs' products of all gates, and peepholes.
    """

    args: Value
    sums: Value
    old: Value
    new: Value
    c: Value
    z: Value
    reset: Value
    pre: Value
    peepholes: Value


def write_cell(module: Module, form: RecurrentForm, n_pass: int) -> None:
    """Define the function that `call_cell` calls: the cell's update after the step's product number `n_pass`.

    Inlined in the loop, LLVM would keep the activations' coefficients in registers; only AVX-512 has enough.
    """
    attributes = "alwaysinline" if _has_registers(module.isa) else "noinline"
    params = [*((field.name, "ptr") for field in fields(CellArgs)), ("is_live", "i64")]
    with module.function(f"cell{n_pass}", params, attributes=attributes, is_exported=False) as f:
        *places, is_live = f.params
        _write_cell(f, form, n_pass, CellArgs(*places), f.splat(is_live.compare("ne", 0)))
        f.ret()


def call_cell(f: Function, n_pass: int, at: CellArgs, is_live: Value) -> None:
    """The new state of one vector of hidden units; the old state is kept if `is_live` is 0."""
    f.call(f"cell{n_pass}", "void", *(getattr(at, field.name) for field in fields(at)), is_live)


def _write_cell(f: Function, form: RecurrentForm, n_pass: int, at: CellArgs, is_live: Value) -> None:
    sums, peepholes = partial(_gate_place, f, at.sums), partial(_gate_place, f, at.peepholes)
    old = f.load(at.old, f.vec)
    acts = [_activation(f, form, at.args, i) for i in range(len(form.activations))]
    match form.cell:
        case "rnn":
            new = acts[0](sums(0))
        case "lstm":
            c = f.load(at.c, f.vec)
            (couples,) = f.fields(at.args, RecurrentArgs, "couples_gates")
            new, c_new = lstm(f, sums, c, peepholes, couples, acts)
            f.store(f.select(is_live, c_new, c), at.c)
        case "gru":
            candidate = acts[1](f.fma(acts[0](sums(1)), sums(2), f.load(f.at(at.pre, 2 * LANES), f.vec)))
            new = gru(f, acts[0](sums(0)), candidate, old)
        case "gru_reset_before":
            if n_pass == 0:
                f.store(acts[0](sums(0)), at.z)
                f.store(acts[0](sums(1)) * old, at.reset)
                return
            new = gru(f, f.load(at.z, f.vec), acts[1](sums(0)), old)
    f.store(f.select(is_live, new, old), at.new)


def _gate_place(f: Function, first: Value, gate: int) -> Value:
    return f.load(f.at(first, gate * LANES), f.vec)


def _activation(f: Function, form: RecurrentForm, args: Value, i: int) -> BoundActivation:
    clip, alpha, beta = f.fields(args, RecurrentArgs, "clip", f"alpha{i}", f"beta{i}")
    function, _, _ = ACTIVATIONS[form.activations[i]]

    def apply(x: Value) -> Value:
        # As in onnxruntime, sums are clipped, LSTM's cell state is not.
        if i < 2:
            limit = f.splat(clip)
            x = f.select(x > limit, limit, x)
            x = f.select(x < -limit, -limit, x)
        y = function(f, x, f.splat(alpha), f.splat(beta))
        return y if _has_registers(f.isa) else f.pin([y])[0]  # one activation after another

    return apply


def _has_registers(isa: Isa) -> bool:
    return isa.name == "avx512"


def lstm(
    f: Function,
    sums: Callable[[int], Value],
    c: Value,
    peepholes: Callable[[int], Value],
    couples_gates: Value,
    activations: Sequence[BoundActivation],
) -> tuple[Value, Value]:
    """(h, c) of sums in ONNX's order i, o, f, c; peepholes are those of i, o, f."""
    gate, cell, hidden = activations
    i = gate(f.fma(peepholes(0), c, sums(0)))
    forget = gate(f.fma(peepholes(2), c, sums(2)))
    forget = f.select(f.splat(couples_gates.compare("ne", 0)), f.const(1.0, i.type) - i, forget)
    new = f.fma(forget, c, i * cell(sums(3)))
    return gate(f.fma(peepholes(1), new, sums(1))) * hidden(new), new


def gru(f: Function, update: Value, candidate: Value, h: Value) -> Value:
    """(1 - z) * candidate + z * h."""
    return f.fma(update, h - candidate, candidate)
