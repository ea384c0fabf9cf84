"""Sessions on a model split over a cluster, of this process alone and with a worker in it."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import pliant
from pliant.cluster.control.timeouts import ClusterTimeouts
from pliant.cluster.lead.open_member import MemberOptions, open_worker
from pliant.cluster.net.key import new_key
from pliant.models.encoder.encoder_random import random_encoder
from pliant.run.session.session import Session
from tests.conformance.session_kind import Arrays, Feeds, SessionKind, classified, ids, write_once
from tests.models.encoder_runs import run_encoder

PATIENT = ClusterTimeouts(silence_s=60.0, least_s=60.0, report_s=10.0)
"""A busy machine is no fault."""
WAIT_S = 240.0
ENCODER = {
    "model_type": "bert",
    "architectures": ["BertForSequenceClassification"],
    "vocab_size": 50,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 33,
    "max_position_embeddings": 24,
    "id2label": {"0": "a", "1": "b"},
}


def _random_encoder(folder: Path) -> Path:
    return write_once(folder / "encoder.json", lambda path: path.write_text(json.dumps(ENCODER)))


@contextmanager
def _cluster(folder: Path, n_workers: int) -> Iterator[Session[Any]]:
    """A model split over this process as primary and as `n_workers` workers, over sockets on loopback."""
    key, config = new_key(), _random_encoder(folder)
    with ExitStack() as ends:
        cluster = pliant.Cluster(
            "127.0.0.1:0",
            key=key,
            threads=1,
            shares="equal",
            adapt=False,  # another split adds in another order: the same bits come from the same plan
            patience=PATIENT,
            cache=folder,
        )
        ends.enter_context(cluster)
        for i in range(n_workers):
            options = MemberOptions(f"worker-{i}", key, pliant.__version__, folder, 1, patience=PATIENT)
            address = cluster.address.removeprefix("tcp://")
            ends.enter_context(open_worker(options, [address], [random_encoder(config)]))
        cluster.wait(n_workers, WAIT_S)
        yield cluster.open(f"random:{config}")


def _unsplit(folder: Path, feeds: Feeds) -> Arrays:
    source = random_encoder(_random_encoder(folder))
    (ids,) = feeds["ids"]
    given = {"ids": ids.astype(np.int32), "types": np.zeros(len(ids), np.int32)}
    return classified(run_encoder(source, given), "a", "b")


CLUSTER_KINDS: dict[str, SessionKind] = {
    name: SessionKind(
        open=partial(_cluster, n_workers=n_workers),
        feeds=ids,
        expected=_unsplit,
        too_long=({"ids": np.ones((1, 25), np.int64)}, "24"),
        exemptions={"together": "its random weights have no tokenizer, and only texts are asked together"},
        n_answers=n_answers,
    )
    for name, n_workers, n_answers in (("cluster of one", 0, 100), ("cluster of two", 1, 20))
}
