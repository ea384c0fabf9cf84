"""Sessions that answer text: elastic ones, from a store and from memory, and recurrent ones."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import pliant
from pliant.models.hf.checkpoint import open_checkpoint
from pliant.models.recurrent.recurrent_source import RecurrentSource, open_recurrent_source, random_recurrent
from pliant.models.spec import tensor_shapes
from pliant.run.session.session import Session
from pliant.run.submodel.elastic_session import ElasticSession
from pliant.store.build import build
from tests.conformance.session_kind import Arrays, Feeds, SessionKind, classified, ids, write_once
from tests.recurrent_models import torchs_answer
from tests.reference_model import run_model
from tests.run.conftest import paper_profile
from tests.tiny import tiny_spec, write_model

WORDS = ("good", "bad film", "the story was not good", "a good movie and a plot", "it is no film", "not it")


def _checkpoint(folder: Path) -> Path:
    return write_once(folder / "bert", lambda path: write_model(path, tiny_spec("bert", widths=(2, 4))))


def _store(folder: Path) -> Path:
    return write_once(folder / "bert.store", lambda path: build(open_checkpoint(_checkpoint(folder)), path))


def _elastic(source: Callable[[Path], Path], preload: int) -> Callable[[Path], Session[Any]]:
    # Without `adapt`: answers are compared bit by bit, and a busy machine must not change plans.
    return lambda folder: pliant.open(
        source(folder),
        preload=preload,
        length=8,
        threads=2,
        profile=paper_profile(),
        anytime=False,
        adapt=False,
        cache=folder,
    )


def _under_several_targets(session: Session[Any], i: int) -> Arrays:
    assert isinstance(session, ElasticSession)
    return dict(session(WORDS[i], latency=0.004 if i % 3 == 0 else None).outputs)


def _in_float64(folder: Path, feeds: Feeds) -> Arrays:
    checkpoint = open_checkpoint(_checkpoint(folder))
    tensors = {name: checkpoint.tensor(name) for name, _ in tensor_shapes(checkpoint.spec)}
    (ids,) = feeds["ids"]
    return classified(run_model(checkpoint.spec, tensors, ids, np.zeros_like(ids)), "negative", "positive")


def _recurrent(source: str) -> Callable[[Path], Session[Any]]:
    return lambda folder: pliant.open(source, threads=2, cache=folder)


def _shipped_lstm() -> RecurrentSource:
    return open_recurrent_source(Path(pliant.__file__).parent / "models" / "assets" / "imdb-lstm")


def _torchs(source: Callable[[], RecurrentSource]) -> Callable[[Path, Feeds], Arrays]:
    def expected(folder: Path, feeds: Feeds) -> Arrays:
        opened = source()
        numbers = torchs_answer(opened, feeds["ids"][0])
        labels = opened.spec.labels
        return {"vector": numbers[None]} if labels is None else classified(numbers, *labels)

    return expected


TEXT_KINDS: dict[str, SessionKind] = {
    "elastic store": SessionKind(
        open=_elastic(_store, 0),
        feeds=ids,
        expected=_in_float64,
        too_long=({"ids": np.ones((1, 25), np.int64)}, "24"),
        texts=WORDS,
        ask=_under_several_targets,
    ),
    "elastic checkpoint": SessionKind(
        open=_elastic(_checkpoint, 10**9),
        feeds=ids,
        expected=_in_float64,
        too_long=({"ids": np.ones((1, 25), np.int64)}, "24"),
        texts=WORDS,
    ),
    "recurrent shipped": SessionKind(
        open=_recurrent("imdb-lstm"),
        feeds=ids,
        expected=_torchs(_shipped_lstm),
        too_long=({"ids": np.ones((1, 16385), np.int64)}, "16384"),
        texts=WORDS,
    ),
    "recurrent random": SessionKind(
        open=_recurrent("random:cove-200"),
        feeds=ids,
        expected=_torchs(lambda: random_recurrent("cove-200")),
        too_long=({"ids": np.ones((1, 16385), np.int64)}, "16384"),
        texts=WORDS,
    ),
}
