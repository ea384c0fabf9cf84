"""Recurrent models as graphs: what goes in and comes out, and what does not depend on the length."""

import numpy as np
import pytest

from pliant.ir.graph import TensorType
from pliant.models.recurrent.recurrent_graph import (
    LENGTHS,
    LOGITS,
    POOLED,
    STARTS,
    STATES,
    VECTORS,
    recurrent_graph,
)
from pliant.models.recurrent.recurrent_source import random_recurrent
from pliant.models.recurrent.recurrent_spec import RecurrentSpec


def weights(spec: RecurrentSpec) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    return {name: random.standard_normal(shape, np.float32) for name, shape in spec.tensors().items()}


@pytest.mark.parametrize("labels", [None, ("bad", "good", "neither")])
def test_states_and_the_answer_come_out(labels: tuple[str, ...] | None) -> None:
    """A classifier's answer are logits, an encoder's its pooled vector; both give every step's state."""
    spec = RecurrentSpec("gru", 9, 5, 7, 2, is_bidirectional=True, pooling=("last", "mean"), labels=labels)
    graph = recurrent_graph(spec, weights(spec), 11)
    assert graph.inputs == (VECTORS,)
    assert graph.types[VECTORS].shape == (11, 1, 5)
    assert graph.outputs == (STATES, POOLED if labels is None else LOGITS)
    assert graph.types[STATES].shape == (11, 14)
    assert graph.types[graph.outputs[1]].shape == ((1, 28) if labels is None else (1, 3))


def test_several_texts_are_concatenated_and_have_an_answer_each() -> None:
    """Their rows stand behind each other, wherever `starts` says."""
    spec = RecurrentSpec("lstm", 9, 5, 7, 2, pooling=("last", "mean"), labels=("bad", "good"))
    graph = recurrent_graph(spec, weights(spec), 11, texts=4)
    assert graph.inputs == (VECTORS, STARTS, LENGTHS)
    assert graph.types[VECTORS].shape == (1, 11, 5)
    assert {graph.types[name] for name in (STARTS, LENGTHS)} == {TensorType("int32", (4,))}
    assert graph.types[STATES].shape == (11, 7)
    assert graph.types[LOGITS].shape == (4, 2)
    assert graph.constants.keys() == recurrent_graph(spec, weights(spec), 11).constants.keys()


def test_constants_are_the_same_at_every_length() -> None:
    """So weights are packed once, and a longer input costs nothing but room."""
    source = random_recurrent("cove-200")
    short, long = (recurrent_graph(source.spec, source.weights, n).constants for n in (64, 128))
    assert short.keys() == long.keys()
    for name, array in short.items():
        np.testing.assert_array_equal(array, long[name])


def test_gates_stand_in_onnxs_order() -> None:
    """torch has i, f, g, o where ONNX has i, o, f, c."""
    spec = RecurrentSpec("lstm", 9, 1, 1)
    given = weights(spec) | {"rnn.weight_hh_l0": np.float32([[1], [2], [3], [4]])}
    constants = recurrent_graph(spec, given, 4).constants
    assert constants["l0.r"].ravel().tolist() == [1, 4, 2, 3]
