"""Feeds in a file: arrays by name, as .npz or JSON."""

import io
import zipfile
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from pliant.errors import InputError
from pliant.models.examples import path_label, standard_input

_NPZ, _JSON = ".npz", ".json"
_ZIP = b"PK"
_LABELS = "labels"


def is_feed_file(path: Path) -> bool:
    """Return whether the file name is one of feeds, not of texts."""
    return path.suffix in (_NPZ, _JSON)


def read_feeds(path: Path) -> dict[str, Any]:
    """Return arrays of an .npz, or numbers and lists of a JSON object, by name; `-` is standard input.

    The format is detected from the content. Raises InputError for a file that cannot be read or is neither.
    """
    file = path_label(path)
    try:
        content = standard_input().read() if path == Path("-") else path.read_bytes()
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}.") from error
    return _arrays(file, content) if content.startswith(_ZIP) else _numbers(file, content)


def labelled_feeds(path: Path) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return arrays by name, and `labels`, an integer for each row. Raises InputError naming the mistake."""
    arrays = {name: np.asarray(array) for name, array in read_feeds(path).items()}
    file = path_label(path)
    labels = arrays.pop(_LABELS, None)
    if labels is None or labels.ndim != 1 or labels.dtype.kind not in "iu" or not len(labels):
        raise InputError(
            f"{file} needs {_LABELS!r}: the class of each row of the other arrays, as an integer."
        )
    for name, array in arrays.items():
        if array.ndim == 0 or len(array) != len(labels):
            raise InputError(
                f"{file} holds {len(labels)} {_LABELS}, but {name!r} is {list(array.shape)}: give one row "
                "an example."
            )
    return arrays, labels


def _arrays(file: str, content: bytes) -> dict[str, Any]:
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            return dict(arrays)
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise InputError(f"{file} is not a valid .npz: {error}. Write it with numpy.savez.") from error


def _numbers(file: str, content: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(content, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise InputError(
            f"{file} is not a file of feeds: {error}. Give an .npz of numpy.savez, or a JSON object such as "
            '{"x": [[1.0, 2.0]]}.'
        ) from error
