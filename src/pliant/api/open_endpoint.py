"""Open the session with which a node answers on its own device."""

from typing import Any

from pliant.api.model import ElasticModel, EncoderModel, unsupported_error
from pliant.api.open_session import open as open_session
from pliant.api.resolve import Source, resolve
from pliant.run.process_memory import Memory
from pliant.run.session.session import Session

_PRELOAD = "100MB"


def open_endpoint(
    source: Source, preload: str | int | None = None, memory: Memory | None = None, **options: Any
) -> Session[Any]:
    """Open the model that `source` names, of any kind but EncoderModel, to answer requests.

    A text encoder keeps 100 MB of weights unless `preload` or `memory` limits it. `options` are those of
    `pliant.open`. Raises PliantError as `pliant.open` does.
    """
    model = resolve(source)
    if isinstance(model, EncoderModel):
        raise unsupported_error(model, "pliant node without --cluster")
    is_elastic = isinstance(model, ElasticModel)
    if is_elastic and preload is None and memory is None:
        preload = _PRELOAD
    adapt = not is_elastic  # an endpoint picks plans by the times that it observed itself
    return open_session(source, **{"preload": preload, "memory": memory, "adapt": adapt, **options})
