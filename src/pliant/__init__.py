"""pliant: name the model, the latency and the memory; pliant plans it and runs it.

>>> import pliant
>>> pliant.__version__.count(".")
2
"""

from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

from pliant import errors as errors
from pliant.errors import PliantError as PliantError

if TYPE_CHECKING:
    from pliant.api.compile_onnx import compile as compile
    from pliant.api.load_compiled import load as load
    from pliant.api.open_cluster import Cluster as Cluster
    from pliant.api.open_session import open as open

    __version__: str

__all__ = ["Cluster", "PliantError", "__version__", "compile", "load", "open"]

_MODULES = {
    "Cluster": "open_cluster",
    "compile": "compile_onnx",
    "load": "load_compiled",
    "open": "open_session",
}

if find_spec("zmq") is None:  # extra `cluster`; `help(pliant)` and `import *` import all that is listed
    __all__.remove("Cluster")


def __getattr__(name: str) -> Any:
    """Import what the package exports when it is first asked for (PEP 562): importing pliant is cheap."""
    if name == "__version__":
        from importlib.metadata import version

        value: Any = version("pliant")
    elif name in _MODULES:
        value = getattr(import_module(f"pliant.api.{_MODULES[name]}"), name)
    else:
        raise AttributeError(f"module 'pliant' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """What is exported, and the modules imported so far; not what this file imports for itself."""
    own = (name for name, value in globals().items() if name[:2] == "__" or isinstance(value, ModuleType))
    return sorted({*own, *__all__})
