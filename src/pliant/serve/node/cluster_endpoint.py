"""A cluster as an endpoint of a node: its answers, and their predicted time."""

from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, Literal, final

import numpy as np

from pliant.api.open_cluster import Cluster
from pliant.api.resolve import resolve
from pliant.errors import InputError
from pliant.ir.endpoint import Request
from pliant.ir.port import Port
from pliant.ir.times.time_curve import TimeCurve
from pliant.run.text_feeds import Tensors, as_bytes, text_of
from pliant.serve.node.served import Converted

PATIENCE_S = 120.0
"""For workers, before the node serves."""
LENGTHS = (8, 32, 128, 512)
"""Whose plans are predicted; times lie on lines between."""


def open_cluster_text(
    model: str,
    listen: str,
    *,
    key: Path | None,
    n_workers: int,
    threads: int | None,
    dilation: float,
    on_event: Callable[[str], None],
) -> "ClusterText":
    """`model` over the workers that join at `listen`, HOST:PORT, once there are `n_workers`.

    Raises ClusterError, ModelError, InputError.
    """
    cluster = Cluster(listen, key=key, threads=threads, dilation=dilation, on_event=on_event)
    try:
        cluster.open(model)  # nobody waits for workers to learn that it cannot be read
        cluster.wait(n_workers, PATIENCE_S)
        source = resolve(model)
        return ClusterText(source.name, source.identity, cluster, model)
    except BaseException:
        cluster.close()
        raise


@final
class ClusterText(Converted):
    """A text encoder split over a cluster, which belongs to it from then on: `text` BYTES [1], or `ids`
    INT64 [1, n].

    A classifier gives `logits` FP32 [1, labels] and `label` BYTES [1], any other `answer` FP32. The curve
    begins with what the plans for some lengths are predicted to take, again whenever other workers can be
    used, and follows what answers took from then on.
    """

    platform = "pliant_cluster"
    degree: ClassVar[Literal[1, 2]] = 2

    def __init__(self, name: str, identity: str, cluster: Cluster, model: str) -> None:
        super().__init__()
        self.name, self.identity = name, identity
        self._cluster, self._model = cluster, model
        encoder = self._encoder = cluster.open(model)
        if "ids" not in encoder.sample(1):
            raise InputError(f"{name} reads no text; ask it by `pliant cluster run`, or serve another model.")
        self.max_length = encoder.spec.max_rows
        labels = encoder.labels
        self.outputs = (
            (Port("answer", "float32", None),)
            if labels is None
            else (Port("logits", "float32", (1, len(labels))), Port("label", "bytes", (1,)))
        )
        text = () if encoder.tokenizer is None else (Port("text", "bytes", (1,)),)
        self.inputs = (*text, Port("ids", "int64", (1, None)))
        self._workers = self._usable()
        self.expect(self._predicted())

    @property
    def ways(self) -> tuple[frozenset[str], ...]:
        return tuple(frozenset({port.name}) for port in self.inputs)

    def request(self, feeds: Tensors) -> Request:
        ids = feeds.get("ids")
        read = self._encoder.read(text_of(feeds, self.max_length)) if ids is None else {"ids": ids[0]}
        return Request(len(read["ids"]), tensors=read)

    def sample(self, length: int) -> dict[str, np.ndarray]:
        return {"ids": np.asarray(self._encoder.sample(max(1, length))["ids"], np.int64)[None]}

    def close(self) -> None:
        self._cluster.close()

    def _answer(self, request: Request) -> Tensors:
        usable = self._usable()
        if usable != self._workers:
            self._workers = usable
            self.expect(self._predicted())
        reply = self._cluster.run(self._model, request.tensors)
        answer = reply.answer.astype(np.float32)[None]
        if self._encoder.labels is None:
            return {"answer": answer}
        label = reply.label
        assert label is not None
        return {"logits": answer, "label": as_bytes(label)}

    def _predicted(self) -> TimeCurve:
        lengths = [n for n in LENGTHS if n < self.max_length] + [self.max_length]
        return TimeCurve(tuple((n, self._cluster.plan(self._model, n).predicted_s) for n in lengths))

    def _usable(self) -> tuple[str, ...]:
        return tuple(member.name for member in self._cluster.status() if member.is_usable)
