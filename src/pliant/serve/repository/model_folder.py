"""Find the models in a folder, by name and version, in the layout of Triton's repositories."""

import logging
from collections.abc import Iterator
from pathlib import Path

from pliant.errors import InputError
from pliant.models.onnx.onnx_folder import SUFFIX, onnx_in
from pliant.serve.repository.model_entry import FIRST_VERSION, ModelKey

_LOG = logging.getLogger("pliant.serve")


def models_in(folder: Path) -> Iterator[tuple[ModelKey, Path]]:
    """Yield (name and version, source) of `NAME.onnx`, `NAME/` and `NAME/VERSION/` with numeric versions.

    The source of a version is its single ONNX file (`onnx_in`), or else its directory. Hidden entries,
    invalid model names and models that cannot be read are skipped; if a file and a directory have the same
    name, the directory is used. Raises InputError if the folder cannot be read.
    """
    seen: set[ModelKey] = set()
    for path in _entries(folder):
        try:
            found = list(_models(path))
        except OSError as error:
            _LOG.warning("%s is passed over, since it cannot be read: %s", path, error)
            continue
        for key, source in found:
            if key not in seen:
                seen.add(key)
                yield key, source


def _entries(folder: Path) -> list[Path]:
    """The entries that may be models, directories first. Raises InputError."""
    try:
        found = [path for path in folder.iterdir() if _key(path.name) or _key(path.stem)]
    except FileNotFoundError:  # the folder was deleted
        return []
    except OSError as error:
        raise InputError(f"{folder} cannot be read: {error}. Let the node read its folder.") from error
    return sorted(found, key=lambda one: (not _is_directory(one), one.name))


def _is_directory(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # the caller finds out when it reads the entry
        return False


def _models(path: Path) -> Iterator[tuple[ModelKey, Path]]:
    """Yield (name and version, source) of one entry; nothing for other files."""
    name = path.name if path.is_dir() else path.stem
    for version, source in _versions(path):
        key = _key(name, version)
        if key is not None:
            yield key, source


def _key(name: str, version: str = FIRST_VERSION) -> ModelKey | None:
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
