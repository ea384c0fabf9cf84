"""Open the model that a node answers with by itself."""

from typing import Any

from pliant.api.model import ElasticModel, EncoderModel, refused
from pliant.api.open_session import open as open_session
from pliant.api.resolve import resolve
from pliant.ir.device import Dilation
from pliant.plan.submodel.plan_options import Depths
from pliant.run.session.session import Session

_PRELOAD = "100MB"


def open_endpoint(
    source: str,
    *,
    preload: str | None,
    threads: int | None,
    memory: str | None = None,
    dilation: float = 1.0,
    depths: Depths = "trained",
) -> Session[Any]:
    """The model that `source` names, whatever its kind; one that only a cluster runs is refused.

    `preload` and `depths` are a text encoder's, which keeps 100 MB of weights where nothing bounds it;
    `memory` bounds what the session adds; `dilation` emulates a device that is so many times slower.
    Raises PliantError as `pliant.open` does.
    """
    model = resolve(source)
    if isinstance(model, EncoderModel):
        raise refused(model, "pliant node without --cluster")
    own: dict[str, Any] = {}
    if isinstance(model, ElasticModel):  # an endpoint picks plans by the times that it observed itself
        if preload is None and memory is None:
            preload = _PRELOAD
        own = {"preload": preload, "depths": depths, "adapt": False}
    return open_session(source, threads=threads, memory=memory, dilation=Dilation(dilation), **own)
