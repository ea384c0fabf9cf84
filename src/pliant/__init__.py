"""pliant: name the model, the latency and the memory; pliant plans it and runs it.

>>> import pliant
>>> pliant.__version__.count(".")
2
"""

from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pliant import errors as errors
    from pliant.api.compile_onnx import compile as compile
    from pliant.api.load_compiled import load as load
    from pliant.api.open_cluster import Cluster as Cluster
    from pliant.api.open_session import open as open
    from pliant.errors import PliantError as PliantError

    __version__: str

__all__ = ["Cluster", "PliantError", "__version__", "compile", "load", "open"]

_MODULES = {
    "Cluster": "pliant.api.open_cluster",
    "PliantError": "pliant.errors",
    "compile": "pliant.api.compile_onnx",
    "load": "pliant.api.load_compiled",
    "open": "pliant.api.open_session",
}

if find_spec("zmq") is None:  # extra `cluster`; `help(pliant)` and `import *` import all that is listed
    __all__.remove("Cluster")


def __getattr__(name: str) -> Any:
    """Import what the package exports when it is first asked for (PEP 562): importing pliant is cheap."""
    if name == "__version__":
        from importlib.metadata import version

        value: Any = version("pliant")
    elif name in _MODULES:
        value = getattr(import_module(_MODULES[name]), name)
    elif name == "errors":
        value = import_module("pliant.errors")
    else:
        raise AttributeError(f"module 'pliant' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """What is exported, and the modules imported so far; not what this file imports for itself."""
    own = (name for name, value in globals().items() if name[:2] == "__" or isinstance(value, ModuleType))
    return sorted({*own, *__all__})
