"""pliant on Ray: `Predictor` for Ray Data, `Deployment` for Ray Serve (extra `ray`)."""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from pliant.errors import InputError

if TYPE_CHECKING:
    from pliant.ray.deployment import Deployment as Deployment
    from pliant.ray.predictor import Predictor as Predictor

__all__ = ["Deployment", "Predictor"]

_MODULES = {"Deployment": "pliant.ray.deployment", "Predictor": "pliant.ray.predictor"}

if find_spec("ray") is None:
    raise InputError("pliant.ray needs ray: pip install 'pliant[ray]'.")


def __getattr__(name: str) -> Any:
    """Import the requested module only: an actor of Ray Data does not need Ray Serve, whose import is slow.

    Raises InputError if Ray is installed without the library that the name needs.
    """
    if name not in _MODULES:
        raise AttributeError(f"module 'pliant.ray' has no attribute {name!r}")
    try:
        return getattr(import_module(_MODULES[name]), name)
    except ImportError as error:
        raise InputError(f"pliant.ray.{name} needs {error.name}: pip install 'pliant[ray]'.") from error


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
