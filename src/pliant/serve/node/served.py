"""The models a node can answer with by itself, opened by what a user calls them."""

from typing import Any, NoReturn

import numpy as np

from pliant.api.model import ElasticModel, EncoderModel, refused
from pliant.api.open_session import open as open_session
from pliant.api.resolve import resolve
from pliant.ir.device import Dilation
from pliant.ir.endpoint import Request
from pliant.ir.reply import Reply
from pliant.plan.submodel.plan_options import Depths
from pliant.run.session import Session
from pliant.run.text_feeds import Tensors


class Converted(Session[None]):
    """What the kinds below do not do before they are sessions themselves."""

    plan = None
    weight_bytes = 0

    def __call__(self, value: Any, /, *more: Any, **options: Any) -> NoReturn:
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

    `preload` and `depths` are a text encoder's; `dilation` emulates a device that is so many times slower.
    Raises PliantError as `pliant.open` does.
    """
    model = resolve(source)
    if isinstance(model, EncoderModel):
        raise refused(model, "pliant node without --cluster")
    own: dict[str, Any] = {}
    if isinstance(model, ElasticModel):  # an endpoint picks plans by the times that it observed itself
        own = {"preload": preload, "depths": depths, "adapt": False}
    return open_session(source, threads=threads, dilation=Dilation(dilation), **own)
