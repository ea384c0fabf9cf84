"""Weights are found in a file's bytes, and nothing else is touched."""

import numpy as np
import onnx
import pytest

from pliant.errors import ModelError
from pliant.models.onnx.onnx_wire import outline
from tests.models.onnx_models import linear


def test_a_long_weight_is_cut_out_and_pointed_at() -> None:
    """The protobuf library then never holds it; the span is the weight's own bytes."""
    model, weight = linear()
    data = model.SerializeToString()
    outlined = outline(memoryview(data))
    (span,) = outlined.weights
    assert span is not None
    assert data[span.start : span.start + span.n_bytes] == weight.tobytes()
    assert len(outlined.model) < 300


def test_all_but_the_weight_is_as_before() -> None:
    """What is parsed must be the model itself."""
    model, _ = linear()
    outlined = outline(memoryview(model.SerializeToString()))
    parsed = onnx.ModelProto.FromString(outlined.model)
    model.graph.initializer[0].ClearField("raw_data")
    assert parsed == model


def test_short_weights_stay() -> None:
    """Shapes and scales are many and small."""
    model, _ = linear(2, 2)
    outlined = outline(memoryview(model.SerializeToString()))
    assert outlined.weights == (None,)
    assert onnx.ModelProto.FromString(outlined.model) == model


@pytest.mark.parametrize("keep", [0.1, 0.5, 0.9, 0.999])
def test_a_truncated_file_is_named_as_such(keep: float) -> None:
    """A download that stopped is the commonest damage."""
    data = linear()[0].SerializeToString()
    with pytest.raises(ModelError, match=r"truncated|claims to end"):
        outline(memoryview(data[: int(len(data) * keep)]))


def test_a_number_without_end_is_refused() -> None:
    """Ten bytes hold any 64-bit number; more is no protobuf."""
    with pytest.raises(ModelError, match="has no end"):
        outline(memoryview(b"\xff" * 20))


def test_a_field_that_claims_terabytes_is_refused_without_reading_them() -> None:
    """Lengths come from the file; none is believed beyond its end."""
    huge = bytes([0x3A]) + b"\xff\xff\xff\xff\xff\xff\x7f" + b"x"
    with pytest.raises(ModelError, match="claims to end"):
        outline(memoryview(huge))


def test_two_graph_fields_are_merged_as_protobuf_merges_them() -> None:
    """A repeated field continues the list; spans stay in the order of the initializers."""
    model, weight = linear()
    data = model.SerializeToString() * 2
    outlined = outline(memoryview(data))
    assert len(outlined.weights) == 2
    assert len(onnx.ModelProto.FromString(outlined.model).graph.initializer) == 2
    for span in outlined.weights:
        assert span is not None
        assert np.array_equal(np.frombuffer(data, np.float32, weight.size, span.start), weight.ravel())
