"""Build the graph of a recurrent model, from word vectors to its answer.

Its operators are ONNX's, and PoolRows (compiler/rules/lower_encoder.py); with the attribute `extent` they may
run over fewer steps than their tensors have. Several texts are concatenated, without padding
(compiler/rules/lower_recurrent.py).
"""

from collections.abc import Mapping

import numpy as np

from pliant.ir.graph import Attribute, Graph, Node, TensorType
from pliant.models.recurrent.recurrent_spec import (
    CLASSIFIER,
    GATES,
    RecurrentCell,
    RecurrentSpec,
    layer_suffix,
)

VECTORS, STATES, POOLED, LOGITS = "vectors", "states", "pooled", "logits"
STARTS, LENGTHS = "starts", "lengths"
_GATE_ORDER: dict[RecurrentCell, tuple[int, ...]] = {"lstm": (0, 3, 1, 2), "gru": (1, 0, 2)}
"""The positions of ONNX's gates in torch's weights: i, o, f, c in i, f, g, o; and z, r, h in r, z, n."""


def recurrent_graph(
    spec: RecurrentSpec, weights: Mapping[str, np.ndarray], tokens: int, texts: int = 1
) -> Graph:
    """`vectors` float32 [tokens, 1, inputs] to all `states` [tokens, width] of the last layer and the answer.

    The answer is `logits` [texts, labels] of a classifier, else the `pooled` vectors [texts, features].

    More than one text: `vectors` are [1, tokens, inputs], of all texts together; `starts` and `lengths` int32
    [texts] are the first row of each text and its number of rows, the longest text first. A text of no rows
    has no answer.
    """
    draft = _GraphBuilder(weights, texts)
    x = VECTORS
    draft.types[x] = _floats(*draft.rows(tokens), spec.inputs)
    for layer in range(spec.n_layers):
        x, last = draft.layer(spec, layer, x, tokens)
    parts = []
    for pooling in spec.pooling:
        if pooling == "last":
            parts.append(draft.add("Reshape", f"{POOLED}.last", (texts, spec.width), (last,)))
        else:
            mode = {"mode": pooling, "extent": 1}
            rows = (x, *draft.ranges)
            parts.append(draft.add("PoolRows", f"{POOLED}.{pooling}", (texts, spec.width), rows, **mode))
    y = draft.add("Concat", POOLED, (texts, spec.features), tuple(parts), axis=1)
    if spec.labels is not None:
        wanted = (y, draft.weight(f"{CLASSIFIER}.weight"), draft.weight(f"{CLASSIFIER}.bias"))
        y = draft.add("Gemm", LOGITS, (texts, len(spec.labels)), wanted, transB=1)
    return draft.graph((STATES, y))


class _GraphBuilder:
    """Builds a graph over `texts` texts, whose rows are `ranges` if there are several."""

    def __init__(self, weights: Mapping[str, np.ndarray], texts: int) -> None:
        self.types: dict[str, TensorType] = {}
        self.ranges: tuple[str, ...] = () if texts == 1 else (STARTS, LENGTHS)
        self.types |= dict.fromkeys(self.ranges, TensorType("int32", (texts,)))
        self._weights, self._texts = weights, texts
        self._nodes: list[Node] = []
        self._constants: dict[str, np.ndarray] = {}

    def rows(self, tokens: int) -> tuple[int, int]:
        """The steps and the batch, which is first if texts are concatenated."""
        return (1, tokens) if self.ranges else (tokens, 1)

    def layer(self, spec: RecurrentSpec, layer: int, x: str, tokens: int) -> tuple[str, str]:
        """All states of a layer, [tokens, width] or in the next layer's input layout, and its final
        states.
        """
        steps, last = f"l{layer}.steps", f"l{layer}.last"
        D, H = spec.directions, spec.hidden
        if self.ranges:
            self.types |= {steps: _floats(1, tokens, D, H), last: _floats(self._texts, D, H)}
        else:
            self.types |= {steps: _floats(tokens, D, 1, H), last: _floats(D, 1, H)}
        constants = tuple(
            self._constant(f"l{layer}.{name}", array) for name, array in self._gates(spec, layer).items()
        )
        attributes: dict[str, Attribute] = {
            "direction": "bidirectional" if spec.is_bidirectional else "forward",
            "hidden_size": H,
            "extent": 1,
        }
        if spec.cell == "gru":
            attributes["linear_before_reset"] = 1
        inputs = (x, *constants)
        if self.ranges:
            attributes["layout"] = 1
            inputs = (*inputs, LENGTHS, "", "", "", STARTS)
        self._nodes.append(Node(spec.cell.upper(), inputs, (steps, last), attributes, name=f"layer {layer}"))
        is_last = layer == spec.n_layers - 1
        shape = (tokens, spec.width) if is_last else (*self.rows(tokens), spec.width)
        return self.add("Reshape", STATES if is_last else f"l{layer}.y", shape, (steps,)), last

    def add(
        self, op: str, y: str, shape: tuple[int, ...], inputs: tuple[str, ...], **attributes: Attribute
    ) -> str:
        self.types[y] = _floats(*shape)
        self._nodes.append(Node(op, inputs, (y,), attributes, name=y))
        return y

    def weight(self, name: str) -> str:
        return self._constant(name, self._weights[name])

    def graph(self, outputs: tuple[str, ...]) -> Graph:
        return Graph(
            nodes=tuple(self._nodes),
            inputs=(VECTORS, *self.ranges),
            outputs=outputs,
            types=self.types,
            constants=self._constants,
            name="recurrent",
        )

    def _gates(self, spec: RecurrentSpec, layer: int) -> dict[str, np.ndarray]:
        """W, R and B in ONNX's layout, directions first."""
        order = list(_GATE_ORDER[spec.cell])

        def turned(kind: str, direction: int) -> np.ndarray:
            rows = self._weights[f"rnn.{kind}{layer_suffix(layer, direction)}"]
            gates = rows.reshape(GATES[spec.cell], spec.hidden, *rows.shape[1:])
            return gates[order].reshape(rows.shape)

        def biases(direction: int) -> np.ndarray:
            return np.concatenate([turned("bias_ih", direction), turned("bias_hh", direction)])

        directions = range(spec.directions)
        return {
            "w": np.stack([turned("weight_ih", d) for d in directions]),
            "r": np.stack([turned("weight_hh", d) for d in directions]),
            "b": np.stack([biases(d) for d in directions]),
        }

    def _constant(self, name: str, array: np.ndarray) -> str:
        self._constants[name] = array
        self.types[name] = _floats(*array.shape)
        return name


def _floats(*shape: int) -> TensorType:
    return TensorType("float32", shape)
