"""Shared parts of the benches of real nodes: a client, texts, RIPE series."""

import gzip
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import httpx
import numpy as np

import checkout  # noqa: F401 - research and testbed lie there
from pliant.route.node_identity import Identity
from report import ROOT
from research.series import Trace, read_ripe
from testbed import why_not
from testbed.nodes import NodeBed

DATA = Path(os.environ.get("PLIANT_DATA") or ROOT.parent / "shared" / "data")
TRACES = Path(os.environ.get("PLIANT_TRACES") or ROOT.parent / "shared" / "traces") / "ripe_atlas"
_AGAIN_S = 0.2
_PATIENCE_S = 600.0


def check_bed() -> None:
    """Exit if the testbed or the traces are not available."""
    reason = why_not()
    if reason is not None:
        raise SystemExit(f"no testbed: {reason}")
    if not TRACES.is_dir():
        raise SystemExit(f"no RIPE Atlas series at {TRACES}; set PLIANT_TRACES to the folder of traces.")


def traces() -> Iterator[Trace]:
    """All RIPE Atlas series, in the order of their names."""
    for path in sorted(TRACES.glob("*.csv")):
        yield read_ripe(path.read_text(), path.stem)


def reviews(count: int, seed: int) -> list[str]:
    """IMDB test reviews, drawn at random without replacement."""
    with gzip.open(DATA / "imdb" / "test.tsv.gz", "rt", encoding="utf-8") as file:
        texts = [line.rpartition("\t")[0] for line in file][1:]
    chosen = np.random.default_rng(seed).permutation(len(texts))[:count]
    return [texts[i] for i in chosen]


@dataclass(frozen=True, slots=True)
class NodeAnswer:
    """The result of a request: its outputs by name, its seconds, and the number of sends."""

    outputs: dict[str, Any]
    seconds: float
    n_sent: int


@final
class NodeClient:
    """An HTTP client of a node; make and use it `inside` the namespace of the client. Thread-safe."""

    def __init__(self, bed: NodeBed, model: str, name: str) -> None:
        self._url = f"{bed.url(name)}/v2/models/{model}/infer"
        self._client = httpx.Client(
            trust_env=False,
            timeout=_PATIENCE_S,
            headers={"authorization": f"Bearer {bed.token}"},
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=4),
        )

    def ask(
        self,
        id: str,
        tensors: Sequence[dict[str, Any]],
        outputs: Sequence[dict[str, Any]] = (),
        route: str | None = None,
    ) -> NodeAnswer:
        """The answer; retried with the same id if the node is down or its queue is full.

        Outputs requested as binary data are omitted. Raises SystemExit on a refusal, and if no answer arrives
        within 600 s.
        """
        headers = {"pliant-request": id}
        if route is not None:
            headers |= {"pliant-route": route, **Identity().headers()}
        body = {"inputs": tensors} | ({"outputs": outputs} if outputs else {})
        start_s, n_sent = time.perf_counter(), 0
        while time.perf_counter() - start_s < _PATIENCE_S:
            n_sent += 1
            try:
                response = self._client.post(self._url, json=body, headers=headers)
            except httpx.TransportError:
                time.sleep(_AGAIN_S)
                continue
            if response.status_code == 503:
                time.sleep(float(response.headers.get("retry-after", _AGAIN_S)))
                continue
            if response.status_code != 200:
                raise SystemExit(f"{id}: status {response.status_code}: {response.text}")
            took_s = time.perf_counter() - start_s
            is_json = response.headers["content-type"] == "application/json"
            found = response.json()["outputs"] if is_json else ()
            return NodeAnswer({output["name"]: output["data"] for output in found}, took_s, n_sent)
        raise SystemExit(f"{id}: no answer within {_PATIENCE_S:g} s, sent {n_sent} times")

    def close(self) -> None:
        self._client.close()
