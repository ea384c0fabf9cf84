"""The models in a folder, by name and version, as Triton's repositories are laid out."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from pliant.errors import InputError
from pliant.serve.repository.model_entry import FIRST_VERSION, ModelKey

_ONNX = ".onnx"


def models_in(folder: Path) -> Iterator[tuple[ModelKey, Path]]:
    """(name and version, source) of `NAME.onnx`, `NAME/` and `NAME/VERSION/`, where versions are numbers.

    A version's source is the one ONNX file that it holds, else its directory. What is hidden, or has no name
    that a model may have, is passed over; of two that have one name the directory counts.
    """
    seen: set[ModelKey] = set()
    with suppress(FileNotFoundError):  # it has gone, and with it what was in it
        for path in sorted(folder.iterdir(), key=lambda one: (not one.is_dir(), one.name)):
            for version, source in _versions(path):
                name = path.name if path.is_dir() else path.stem
                key = _key(name, version)
                if key is not None and key not in seen:
                    seen.add(key)
                    yield key, source


def _key(name: str, version: str) -> ModelKey | None:
    if name.startswith("."):
        return None
    try:
        return ModelKey(name, version)
    except InputError:
        return None


def _versions(path: Path) -> Iterator[tuple[str, Path]]:
    """(version, source) of one model; nothing for a file that is none."""
    if not path.is_dir():
        if path.suffix == _ONNX:
            yield FIRST_VERSION, path
        return
    numbered = sorted(one for one in path.iterdir() if one.is_dir() and one.name.isdecimal())
    if not numbered:
        yield FIRST_VERSION, _source(path)
    for one in numbered:
        yield one.name, _source(one)


def _source(path: Path) -> Path:
    """A model directory and a store have no ONNX file at their top."""
    graphs = list(path.glob(f"*{_ONNX}"))
    return graphs[0] if len(graphs) == 1 else path
