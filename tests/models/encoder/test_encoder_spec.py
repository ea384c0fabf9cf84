"""An encoder as data: names, shapes, and what does not fit together."""

from dataclasses import replace

import pytest

from pliant.errors import ModelError
from pliant.models.encoder.encoder_spec import (
    EncoderLayer,
    EncoderSpec,
    FeedForward,
    LinearSpec,
    Narrowing,
    NormSpec,
)


def _norm(name: str, n: int) -> NormSpec:
    return NormSpec(name, n, "layer", 1e-12)


def _spec() -> EncoderSpec:
    layer = EncoderLayer(
        *(LinearSpec(name, 6, 6) for name in ("query", "key", "value", "output")),
        attention_norm=_norm("attention_norm", 6),
        feed_forwards=(
            FeedForward(LinearSpec("up", 6, 10), LinearSpec("down", 10, 6), _norm("output_norm", 6)),
        ),
    )
    return EncoderSpec("bert", 2, 3, 2, 6, 6, 10, "gelu", 9, layer)


def test_every_name_of_a_layer_carries_its_prefix() -> None:
    """Weights are found by these names, on every device."""
    layer = _spec().layer(1)
    assert all(name.startswith("layers.1.") for name, _ in layer.tensors)
    weights = [name for name, shape in layer.tensors if len(shape) == 2]
    assert weights == [
        f"layers.1.{name}.weight" for name in ("query", "key", "value", "output", "up", "down")
    ]


def test_the_prefix_reaches_what_is_nested() -> None:
    """MobileBERT's bottlenecks are data inside of data."""
    narrow = Narrowing(LinearSpec("query_in", 6, 6), _norm("query_in_norm", 6))
    spec = replace(_spec(), template=replace(_spec().template, query_in=narrow))
    found = spec.layer(0).query_in
    assert found is not None
    assert (found.linear.name, found.norm.name) == ("layers.0.query_in", "layers.0.query_in_norm")


def test_tensors_leave_out_the_bias_that_is_not_there() -> None:
    """Whisper's key has none; a random or missing one would be an error."""
    template = replace(_spec().template, key=LinearSpec("key", 6, 6, has_bias=False))
    tensors = dict(replace(_spec(), template=template).layer(0).tensors)
    assert "layers.0.key.bias" not in tensors
    assert tensors["layers.0.up.weight"] == (10, 6)
    assert tensors["layers.0.output_norm.bias"] == (6,)


def test_a_bottleneck_that_queries_and_residual_share_is_counted_once() -> None:
    """Bytes of weights are added up from these."""
    narrow = Narrowing(LinearSpec("in", 6, 6), _norm("in_norm", 6))
    template = replace(_spec().template, query_in=narrow, residual_in=narrow)
    names = [name for name, _ in replace(_spec(), template=template).layer(0).tensors]
    assert names.count("layers.0.in.weight") == 1


def test_widths_that_do_not_fit_are_named() -> None:
    """A wrong configuration is refused before any weight is read."""
    with pytest.raises(ModelError, match="up is 10 wide in this bert, but must be 11"):
        replace(_spec(), ffn=11)


def test_a_size_below_one_is_named() -> None:
    """Zero layers would run, and answer with the embeddings."""
    with pytest.raises(ModelError, match="n_layers is 0"):
        replace(_spec(), n_layers=0)


def test_a_layer_past_the_last_is_an_error() -> None:
    """Segment s is layer s, and there is one segment more than there are layers in some loops."""
    with pytest.raises(ModelError, match="layer 2 was requested, but the encoder has layers 0 to 1"):
        _spec().layer(2)
