"""What a replica tells its routers."""

from typing import Any

import numpy as np
import pytest

import pliant
from pliant.ir.curve import Curve
from pliant.ir.endpoint import NO_ANSWER_S
from tests.models.onnx_models import parse

pytest.importorskip("ray", reason="ray is not installed: pip install 'pliant[ray]'")
from pliant.ray.replica_advert import InputSize, ReplicaAdvert, advert_of, decode_advert, input_size

ADVERT = ReplicaAdvert(Curve(((0, 0.001), (64, 0.02))), InputSize(70.0, 4.5, 1, 512))


def test_an_advert_comes_back_as_it_was() -> None:
    """As plain values: Ray sends it through its controller."""
    assert decode_advert(ADVERT.encode()) == ADVERT


@pytest.mark.parametrize(
    "told",
    [{}, {"curve": []}, {**ADVERT.encode(), "size": [1]}, {**ADVERT.encode(), "curve": [[4, -1.0]]}],
)
def test_what_is_no_advert_is_none(told: dict[str, Any]) -> None:
    """A replica of another version of pliant must not end the router of its deployment."""
    assert decode_advert(told) is None


def test_lengths_of_texts_follow_their_bytes() -> None:
    """A router never sees tokens: its estimate need not be exact, but has to grow as they do."""
    text = "It was a long and rather dull evening, but the second half of the film made up for it. "
    with pliant.open("sst2") as session:
        size = input_size(session)
        for times in (1, 2, 5):
            asked = text * times
            n = session.encode(asked).n_tokens
            assert 0.6 * n <= size.length(len(asked) + int(size.fixed)) <= 1.6 * n
        assert size.length(0) == 1
        assert size.length(10**9) == session.max_length
        assert advert_of(session, size).curve.at(64) > 0.0


def test_lengths_of_arrays_follow_their_numbers() -> None:
    """An input with open dimensions grows with them; one without has one length."""
    with pliant.open(
        parse("g (float[1, k] x) => (float[1, k] y) { y = Add (x, x) }").SerializeToString()
    ) as session:
        size = input_size(session)
        assert size.length(len('{"x":[[' + ",".join(["1.5"] * 40) + "]]}")) == pytest.approx(40, rel=0.5)
    with pliant.open(
        parse("g (float[1, 3] x) => (float[1, 3] y) { y = Add (x, x) }").SerializeToString()
    ) as session:
        length = session.request({"x": np.zeros((1, 3), np.float32)}).length
        assert input_size(session).length(10_000) == length


def test_a_limit_of_memory_is_left_out() -> None:
    """A body's length is a guess: 32 short texts looked like one that a small replica has no memory for."""
    with pliant.open("sst2", memory="4MB", latency="1s", threads=1) as session:
        assert session.levels()[-1].most_n is not None
        seconds = [s for _, s in advert_of(session, input_size(session)).curve.points]
    assert max(seconds) < NO_ANSWER_S
