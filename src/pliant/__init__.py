"""pliant: name the model, the latency and the memory; pliant plans it and runs it.

>>> import pliant
>>> pliant.__version__.count(".")
2
"""

from types import ModuleType
from typing import TYPE_CHECKING, Any

from pliant import compile

if TYPE_CHECKING:
    from pliant.api import open as open
    from pliant.clustered import Cluster as Cluster
    from pliant.loaded import load as load
    from pliant.recurrent import open_recurrent as open_recurrent

__all__ = ["Cluster", "__version__", "compile", "load", "open", "open_recurrent"]


def __getattr__(name: str) -> Any:
    """What the package exports is looked up when asked for (PEP 562): cheap to import."""
    if name == "open":
        from pliant.api import open

        return open
    if name == "open_recurrent":
        from pliant.recurrent import open_recurrent

        return open_recurrent
    if name == "Cluster":
        from pliant.clustered import Cluster

        return Cluster
    if name == "load":
        from pliant.loaded import load

        return load
    if name == "__version__":
        from importlib.metadata import version

        return version("pliant")
    raise AttributeError(f"module 'pliant' has no attribute {name!r}")


class _Verb(ModuleType):
    """The package `pliant.compile`, which users also call: `pliant.compile("model.onnx")`."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        from pliant.compiled import compile as compile_model

        return compile_model(*args, **options)


compile.__class__ = _Verb
