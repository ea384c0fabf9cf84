"""pliant: name the model, the latency and the memory; pliant plans it and runs it.

>>> import pliant
>>> pliant.__version__.count(".")
2
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pliant.api import open as open

__all__ = ["__version__", "open"]


def __getattr__(name: str) -> Any:
    """`open` and the version are looked up when first asked for (PEP 562): importing pliant stays cheap."""
    if name == "open":
        from pliant.api import open

        return open
    if name == "__version__":
        from importlib.metadata import version

        return version("pliant")
    raise AttributeError(f"module 'pliant' has no attribute {name!r}")
