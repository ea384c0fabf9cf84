"""Find the models in a folder, by name and version, in the layout of Triton's repositories."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from pliant.errors import InputError
from pliant.models.onnx.onnx_folder import SUFFIX, onnx_in
from pliant.serve.repository.model_entry import FIRST_VERSION, ModelKey


def models_in(folder: Path) -> Iterator[tuple[ModelKey, Path]]:
    """Yield (name and version, source) of `NAME.onnx`, `NAME/` and `NAME/VERSION/` with numeric versions.

    The source of a version is its single ONNX file (`onnx_in`), or else its directory. Hidden entries and
    invalid model names are skipped; if a file and a directory have the same name, the directory is used.
    """
    seen: set[ModelKey] = set()
    with suppress(FileNotFoundError):  # the folder was deleted
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
    """Yield (version, source) of one model; nothing for other files."""
    if not path.is_dir():
        if path.suffix == SUFFIX:
            yield FIRST_VERSION, path
        return
    numbered = sorted(one for one in path.iterdir() if one.is_dir() and one.name.isdecimal())
    if not numbered:
        yield FIRST_VERSION, onnx_in(path) or path
    for one in numbered:
        yield one.name, onnx_in(one) or one
