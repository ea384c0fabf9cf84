"""Lower LSTM, GRU and RNN: one product for all inputs, then a kernel that contains the time loop.

Gates are in ONNX's order. In pliant's own graphs, a sequence may have fewer steps than its tensors, with the
attribute `extent`. With a ninth input, the first row of each sequence, int32 [batch], the sequences are
concatenated along the steps of x and y, whose batch is 1; their lengths are then given, the longest first,
and `layout` is 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf

import numpy as np

from pliant.compiler.executable.call import (
    Call,
    FieldValue,
    Kernel,
    LoweredNode,
    PackedConstant,
    Ref,
    RowExtent,
    Target,
)
from pliant.compiler.rules.conv.conv_call import ConvTensors, conv_call, matrix_shape
from pliant.errors import GraphError
from pliant.ir.graph import Graph, Node
from pliant.kernels.conv import conv_weights
from pliant.kernels.conv.conv_args import ConvForm
from pliant.kernels.recurrent import recurrent_kernel as recurrent
from pliant.kernels.recurrent.recurrent_args import LANES, CellVariant, RecurrentArgs, RecurrentForm
from pliant.kernels.recurrent.recurrent_cells import ACTIVATIONS
from pliant.kernels.recurrent.recurrent_weights import (
    INTERLEAVE,
    InterleaveArgs,
    Interleaving,
    interleave,
    interleave_ir,
)

_STARTS = 8
"""The input with the first row of each sequence."""
_DEFAULTS = {"LSTM": ("sigmoid", "tanh", "tanh"), "GRU": ("sigmoid", "tanh"), "RNN": ("tanh",)}


@dataclass(frozen=True, slots=True)
class _Layer:
    """The extents of one node, and its names for temporaries."""

    node: Node
    cell: CellVariant
    directions: int
    steps: int
    batch: int
    inputs: int
    hidden: int
    gates: int
    is_batch_first: bool
    is_concatenated: bool

    @property
    def rows(self) -> int:
        """Rows of the input."""
        return self.steps if self.is_concatenated else self.steps * self.batch

    @property
    def blocks(self) -> int:
        return -(-self.hidden // LANES)

    @property
    def columns(self) -> int:
        """Columns of the inputs' product, all directions together."""
        return self.directions * self.blocks * self.gates * LANES

    def input(self, n: int) -> str:
        return self.node.inputs[n] if n < len(self.node.inputs) else ""

    def temporary(self, what: str) -> str:
        return f"{next(y for y in self.node.outputs if y)}:{what}"


def _recurrent(node: Node, graph: Graph, target: Target) -> LoweredNode:
    layer = _layer(node, graph)
    names, parts = _weights(layer, graph)
    pre = layer.temporary("pre")
    first = conv_call(
        ConvTensors(node.inputs[0], names["inputs"], names["bias"], pre),
        ConvForm("nhwc", "nhwc"),
        matrix_shape(layer.rows, layer.inputs, layer.columns),
        target,
        node.label,
    )
    cells, memory = _cells(layer, names, pre, target)
    if node.flag("extent"):
        assert layer.batch == 1 or layer.is_concatenated, "an extent is of one row after another"
        first, cells = _with_extents(first, cells)
    temporaries = {pre: 4 * layer.rows * layer.columns, **memory}
    calls = [call for part in parts for call in part.calls]
    packed: dict[str, PackedConstant] = {}
    for part in parts:
        temporaries |= part.temporaries
        packed |= part.packed
    return LoweredNode((*calls, first, *cells), (), temporaries, packed)


def _with_extents(first: Call, cells: Sequence[Call]) -> tuple[Call, list[Call]]:
    """The same calls with an extent: the number of steps is set before each run."""
    pixels, columns = first.fields["unit_pixels"], first.fields["panel_blocks"]
    assert isinstance(pixels, int)
    assert isinstance(columns, int)

    def share(lengths: Sequence[int]) -> tuple[int, int]:
        return -(-sum(lengths) // pixels) * columns, first.grain

    def unchanged(units: int) -> RowExtent:
        return RowExtent(("steps",), lambda lengths: (units, 1))

    product = RowExtent(("pixels", "in_w", "out_w"), share)
    return replace(first, extent=product), [replace(c, extent=unchanged(c.n_units)) for c in cells]


def _layer(node: Node, graph: Graph) -> _Layer:
    x, w = graph.types[node.inputs[0]], graph.types[node.inputs[1]]
    if x.dtype != "float32":
        raise GraphError(f"node {node.label!r}: recurrent kernels are float32 only, not {x.dtype}.")
    is_batch_first = node.integer("layout", 0) == 1
    steps, batch = (x.shape[1], x.shape[0]) if is_batch_first else x.shape[:2]
    if 0 in x.shape:
        raise GraphError(f"node {node.label!r}: {node.inputs[0]!r} is {x}, which has nothing to read.")
    is_concatenated = len(node.inputs) > _STARTS
    if is_concatenated:
        assert is_batch_first, "concatenated sequences have no stride"
        batch = graph.types[node.inputs[_STARTS]].size
    hidden = graph.types[node.inputs[2]].shape[-1]
    resets_late = node.flag("linear_before_reset")
    cells: dict[str, CellVariant] = {
        "LSTM": "lstm",
        "RNN": "rnn",
        "GRU": "gru" if resets_late else "gru_reset_before",
    }
    return _Layer(
        node,
        cells[node.op],
        w.shape[0],
        steps,
        batch,
        x.shape[2],
        hidden,
        w.shape[1] // hidden,
        is_batch_first,
        is_concatenated,
    )


def _weights(layer: _Layer, graph: Graph) -> tuple[dict[str, str], list[LoweredNode]]:
    """Names of all interleaved constants ("" if there is none), and their lowerings."""
    w, r, b, p = (layer.input(n) for n in (1, 2, 3, 7))
    H, G = layer.hidden, layer.gates
    width = recurrent.padded_hidden(H)
    inputs = Interleaving(H, layer.inputs, conv_weights.padded(layer.inputs), 0, G, G)
    form = RecurrentForm(layer.cell, ())
    jobs: dict[str, tuple[str, list[Interleaving]]] = {"inputs": (w, [inputs])}
    first = 0
    for name, gates in zip(("weights", "late_weights"), form.passes, strict=False):
        jobs[name] = (r, [Interleaving(H, H, width, first, gates, gates)])
        first += gates
    under_reset = layer.cell == "gru"
    both = [Interleaving(H, 1, 1, 0, G, G), Interleaving(H, 1, 1, G, G - under_reset, G)]
    jobs["bias"] = (b, both)
    if under_reset:
        jobs["hidden_bias"] = (b, [Interleaving(H, 1, 1, 2 * G - 1, 1, 1)])
    if p:
        jobs["peepholes"] = (p, [Interleaving(H, 1, 1, 0, 3, 3)])
    names = dict.fromkeys(("late_weights", "hidden_bias", "peepholes"), "")
    names |= {name: layer.temporary(name) for name in jobs}
    return names, [_interleave(layer, graph, names[name], *job) for name, job in jobs.items()]


def _interleave(
    layer: _Layer, graph: Graph, out: str, source: str, how: Sequence[Interleaving]
) -> LoweredNode:
    """A constant packed once, or a temporary written before each run."""
    n_bytes = 4 * layer.directions * layer.blocks * how[0].block_floats
    if not source or source in graph.constants:
        fill = partial(_fill, source=graph.constants.get(source), how=tuple(how))
        return LoweredNode(packed={out: PackedConstant(n_bytes, fill, source)})
    rows = graph.types[source].shape[1]
    calls = [
        Call(
            Kernel(INTERLEAVE, interleave_ir),
            InterleaveArgs,
            {"w": Ref(source), "out": Ref(out), **part.fields(rows), "adds": int(n > 0)},
            n_units=layer.directions * layer.blocks,
            reads=(source,),
            writes=(out,),
            label=layer.node.label,
        )
        for n, part in enumerate(how)
    ]
    return LoweredNode(tuple(calls), (), {out: n_bytes})


def _fill(memory: np.ndarray, source: np.ndarray | None, how: Sequence[Interleaving]) -> None:
    to = memory.view(np.float32)
    to[:] = 0
    if source is not None:
        w = source.reshape(*source.shape[:2], -1)
        for part in how:
            to += interleave(w, part).reshape(-1)


def _cells(
    layer: _Layer, names: dict[str, str], pre: str, target: Target
) -> tuple[list[Call], dict[str, int]]:
    """Calls for all directions at once, or one per direction if activations differ; and their memory."""
    acts = _activations(layer)
    is_reverse = layer.node.text("direction", "forward") == "reverse"
    if len(set(acts)) == 1:
        spans = [(acts[0], 0, layer.directions, int(is_reverse))]
    else:
        spans = [(a, d, 1, d) for d, a in enumerate(acts)]
    calls, memory = [], {}
    for a, first, directions, backward in spans:
        shared = layer.temporary(f"memory{first}")
        crew = _crew(layer, directions, target)
        memory[shared] = 4 * directions * crew.row_blocks * recurrent.crew_floats(layer.hidden, crew.rows)
        calls += _calls(layer, names | {"pre": pre, "memory": shared}, a, first, directions, backward, crew)
    return calls, memory


@dataclass(frozen=True, slots=True)
class _Crew:
    """The sequences of one crew (threads that share a recurrence), crews per direction, and members per
    crew.
    """

    rows: int
    row_blocks: int
    members: int


_SHARED_FLOATS = 1 << 16
"""Weights per step and direction from which on sharing a step among threads gains more time than waiting
costs.
"""


def _crew(layer: _Layer, directions: int, target: Target) -> _Crew:
    """One crew per thread if there are enough sequences; else several threads per crew."""
    threads = max(1, target.n_threads // directions)
    rows = max(1, -(-layer.batch // threads))
    row_blocks = max(1, -(-layer.batch // rows))
    members = max(1, threads // row_blocks)
    is_worth_it = layer.gates * layer.hidden**2 >= _SHARED_FLOATS
    return _Crew(rows, row_blocks, members if is_worth_it else 1)


def _calls(
    layer: _Layer,
    names: dict[str, str],
    acts: tuple[tuple[str, float, float], ...],
    first: int,
    directions: int,
    backward: int,
    crew: _Crew,
) -> list[Call]:
    node, B, S, H, D = layer.node, layer.batch, layer.steps, layer.hidden, layer.directions
    form = RecurrentForm(layer.cell, tuple(name for name, _, _ in acts))
    states = [layer.input(n) for n in (4, 5, 6, _STARTS)]
    outputs = dict(zip(("y", "y_h", "y_c"), (*node.outputs, "", ""), strict=False))
    inputs = {
        **{name: names[name] for name in ("pre", "weights", "late_weights", "hidden_bias", "peepholes")},
        **dict(zip(("lengths", "initial_h", "initial_c", "starts"), states, strict=True)),
    }
    tensors = {**inputs, **outputs, "memory": names["memory"]}
    first_of_batch = layer.is_batch_first
    clip = node.real("clip", 0.0)
    fields: dict[str, FieldValue] = {
        **{name: Ref(tensor) for name, tensor in tensors.items() if tensor},
        "steps": S,
        "batch": B,
        "hidden": H,
        "blocks": layer.blocks,
        "unit_rows": crew.rows,
        "row_blocks": crew.row_blocks,
        "members": crew.members,
        "shares": 1 if crew.members == 1 else 2 * crew.members,
        "first_direction": first,
        "backward": backward,
        "pre_t": layer.columns * (1 if first_of_batch else B),
        "pre_b": layer.columns * (S if first_of_batch else 1),
        "pre_d": layer.columns // D,
        "y_t": D * H * (1 if first_of_batch else B),
        "y_b": H * (S * D if first_of_batch else 1),
        "y_d": H * (1 if first_of_batch else B),
        "state_b": H * (D if first_of_batch else 1),
        "state_d": H * (1 if first_of_batch else B),
        "couples_gates": node.integer("input_forget", 0),
        "clip": clip if clip > 0 else inf,
        **{f"alpha{i}": a for i, (_, a, _) in enumerate(acts)},
        **{f"beta{i}": b for i, (_, _, b) in enumerate(acts)},
    }
    crews = directions * crew.row_blocks if B else 0
    start = Call(
        Kernel(recurrent.START, recurrent.start_ir),
        RecurrentArgs,
        fields,
        n_units=crews,
        reads=tuple(t for t in inputs.values() if t),
        writes=(names["memory"],),
        label=node.label,
    )
    run = Call(
        Kernel(form.name, partial(recurrent.recurrent_ir, form=form)),
        RecurrentArgs,
        fields,
        n_units=crews * crew.members,
        reads=(*(t for t in inputs.values() if t), names["memory"]),
        writes=tuple(t for t in outputs.values() if t),
        scratch_bytes=recurrent.scratch_bytes(form, crew.rows),
        label=node.label,
    )
    return [start, run]


def _activations(layer: _Layer) -> list[tuple[tuple[str, float, float], ...]]:
    """Name, alpha and beta of each direction's activations.

    `activation_alpha` and `activation_beta` list the parameters of the activations that have one, in order.
    Raises GraphError for an unknown name.
    """
    default = _DEFAULTS[layer.node.op]
    given = layer.node.texts("activations", default * layer.directions)
    alphas, betas = (list(layer.node.reals(f"activation_{n}", ())) for n in ("alpha", "beta"))
    found = []
    for name in (n.lower() for n in given):
        if name not in ACTIVATIONS:
            raise GraphError(
                f"node {layer.node.label!r}: no activation {name!r}; "
                f"there are {', '.join(sorted(ACTIVATIONS))}."
            )
        _, alpha, beta = ACTIVATIONS[name]
        alpha = alphas.pop(0) if alphas and name in _WITH_ALPHA else alpha
        beta = betas.pop(0) if betas and name in _WITH_BETA else beta
        found.append((name, alpha, beta))
    n = len(default)
    if len(found) != n * layer.directions:
        raise GraphError(
            f"node {layer.node.label!r}: {len(found)} activations are given, "
            f"{n * layer.directions} are needed."
        )
    return [tuple(found[n * d : n * (d + 1)]) for d in range(layer.directions)]


_WITH_ALPHA = frozenset(["affine", "leakyrelu", "thresholdedrelu", "scaledtanh", "hardsigmoid", "elu"])
_WITH_BETA = frozenset(["affine", "scaledtanh", "hardsigmoid"])


RULES = dict.fromkeys(("LSTM", "GRU", "RNN"), _recurrent)
