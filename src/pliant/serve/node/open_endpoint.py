"""Open the model that a node answers with by itself."""

from typing import TYPE_CHECKING, Any

from pliant.api.model import ElasticModel, EncoderModel, refused
from pliant.api.open_session import open as open_session
from pliant.api.resolve import resolve
from pliant.ir.dilation import Dilation
from pliant.plan.submodel.plan_options import Depths
from pliant.run.session.session import Session

if TYPE_CHECKING:
    from pliant.ir.bitwidths import Weights

_PRELOAD = "100MB"


def open_endpoint(
    source: str,
    *,
    threads: int | None,
    preload: str | None = None,
    memory: str | None = None,
    dilation: Dilation = Dilation(),  # noqa: B008 - frozen
    depths: Depths | None = None,
    weights: "Weights" = "fp32",
) -> Session[Any]:
    """The model that `source` names, whatever its kind; one that only a cluster runs is refused.

    `preload` and `depths` are for a text encoder, which keeps 100 MB of weights where nothing bounds it;
    `weights` are an ONNX model's; `memory` bounds what the session adds; `dilation` emulates a device that is
    so many times slower. Raises PliantError as `pliant.open` does.
    """
    model = resolve(source)
    if isinstance(model, EncoderModel):
        raise refused(model, "pliant node without --cluster")
    is_elastic = isinstance(model, ElasticModel)
    if is_elastic and preload is None and memory is None:
        preload = _PRELOAD
    return open_session(
        source,
        threads=threads,
        preload=preload,
        depths=depths,
        memory=memory,
        weights=weights,
        dilation=dilation,
        adapt=not is_elastic,  # an endpoint picks plans by the times that it observed itself
    )
