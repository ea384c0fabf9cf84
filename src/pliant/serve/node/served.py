"""The models a node can answer with by itself, opened by what a user calls them."""

from typing import Any, NoReturn

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
from pliant.api.open_elastic import open_elastic
from pliant.api.resolve import resolve
from pliant.ir.device import Dilation
from pliant.ir.endpoint import Request
from pliant.ir.reply import Reply
from pliant.plan.submodel.plan_options import Depths, PlanOptions
from pliant.quantities import parse_bytes
from pliant.run.graph.recurrent_session import RecurrentSession
from pliant.run.session import Session
from pliant.run.submodel.planning import WHOLE_S, SessionOptions
from pliant.run.text_feeds import Tensors
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


def open_served(
    source: str,
    *,
    preload: str,
    threads: int | None,
    dilation: float = 1.0,
    depths: Depths = "trained",
) -> Session[Any]:
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
            return open_elastic(model, options, dilation=Dilation(dilation))
        case EncoderModel():
            raise refused(model, "pliant node without --cluster")
