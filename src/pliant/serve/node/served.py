"""The models a node can answer with by itself, opened by what a user calls them."""

from typing import ClassVar, Literal, NoReturn, final

import numpy as np

from pliant.api.compile_onnx import open_graph
from pliant.api.load_compiled import open_compiled, shared_pool
from pliant.api.model import (
    CheckpointModel,
    CompiledProgram,
    EncoderModel,
    OnnxGraph,
    RecurrentNetwork,
    StoreModel,
    refused,
)
from pliant.api.open_elastic import WHOLE_S, open_elastic
from pliant.api.resolve import resolve
from pliant.ir.device import Dilation
from pliant.ir.endpoint import Estimate, Request
from pliant.ir.port import Port
from pliant.ir.reply import Reply
from pliant.ir.times.time_curve import TimeCurve
from pliant.models.tokenizer import open_tokenizer
from pliant.plan.submodel.plan_options import Depths, PlanOptions
from pliant.quantities import parse_bytes
from pliant.run.graph.recurrent_session import RecurrentSession
from pliant.run.session import Session
from pliant.run.submodel.session import Session as Elastic
from pliant.run.submodel.session import SessionOptions
from pliant.run.text_feeds import Tensors, as_bytes, text_of
from pliant.serve.node.elastic_endpoint import ElasticSession
from pliant.settings import thread_count


class Converted(Session[None]):
    """What the kinds below do not do before they are sessions themselves."""

    plan = None
    weight_bytes = 0

    def __call__(self, value: object, /) -> Reply[None]:
        raise NotImplementedError

    def explain(self, length: int) -> None:
        raise NotImplementedError

    def profile(self, feeds: object, runs: int = 20) -> NoReturn:
        raise NotImplementedError

    def _run(self, feeds: object, out: object) -> dict[str, np.ndarray]:
        raise NotImplementedError

    def _reply(self, request: Request) -> Reply[None]:
        return Reply(self._answer(request), self.name, 0.0, None, request.length)

    def _answer(self, request: Request) -> Tensors:
        raise NotImplementedError


@final
class TextClassifier(Converted):
    """A session that answers text: `text` BYTES [1] -> `logits` FP32 [1, labels], `label` BYTES [1]."""

    platform = "pliant_session"
    degree: ClassVar[Literal[1, 2]] = 2

    def __init__(self, name: str, identity: str, session: Elastic) -> None:
        super().__init__()
        self.name, self.identity = name, identity
        self._elastic = ElasticSession(name, session)
        labels = session.store.spec.head.labels or ()
        self._tokenizer = open_tokenizer(session.store.path, session.store.spec)
        self.max_length = session.store.spec.max_tokens
        self.inputs = (Port("text", "bytes", (1,)),)
        self.outputs = (Port("logits", "float32", (1, len(labels))), Port("label", "bytes", (1,)))

    @property
    def best(self) -> float | None:
        return self._elastic.best

    def curve(self, accuracy_floor: float = 0.0) -> TimeCurve:
        return self._elastic.curve(accuracy_floor)

    def estimate(self, request: Request) -> Estimate:
        return self._elastic.estimate(request)

    def answer(self, request: Request) -> Reply[None]:
        return self._elastic.answer(request)

    def request(self, feeds: Tensors) -> Request:
        text = text_of(feeds, self.max_length)
        return Request(self._tokenizer.encode(text).n_tokens, text)

    def sample(self, length: int) -> dict[str, np.ndarray]:
        return {"text": as_bytes(" ".join(["good"] * max(1, length - 2)))}

    def close(self) -> None:
        self._elastic.close()


def open_served(
    source: str,
    *,
    preload: str,
    threads: int | None,
    dilation: float = 1.0,
    depths: Depths = "trained",
) -> Session[None]:
    """The model that `source` names, whatever its kind; one that only a cluster runs is refused.

    `preload` and `depths` are a session's; `dilation` emulates a device that is so many times slower.
    Raises PliantError as `pliant.open` does.
    """
    model = resolve(source)
    match model:
        case RecurrentNetwork():
            made = shared_pool(threads)
            return RecurrentSession(model.source, *made, name=model.name, dilation=dilation)
        case OnnxGraph():
            return open_graph(model, threads=threads, dilation=dilation)
        case CompiledProgram():
            return open_compiled(model.name, model.path, threads, dilation)
        case StoreModel() | CheckpointModel():
            options = SessionOptions(
                WHOLE_S,
                parse_bytes(preload),
                n_threads=thread_count(threads),
                plan=PlanOptions(depths=depths),
                adapts=False,  # the endpoint picks targets by what it observed itself
            )
            session = open_elastic(model, options, dilation=Dilation(dilation))
            return TextClassifier(model.name, model.identity, session)
        case EncoderModel():
            raise refused(model, "pliant node without --cluster")
