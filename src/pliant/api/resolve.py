"""Resolve a source, as given by a user, to a model; the only place that distinguishes kinds of models.

A source is the name of a model that ships with pliant, a directory (a store, a compiled model, a Hugging Face
or a recurrent model, or one with a single ONNX file), an ONNX file, its bytes or ModelProto,
`random:CONFIG[:SEED]`, or an id of the Hugging Face hub. Local paths come before shipped models, and shipped
models before the hub.
"""

import os
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pliant.api.model import (
    CheckpointModel,
    CompiledProgram,
    ElasticModel,
    EncoderModel,
    Model,
    OnnxGraph,
    RandomWeights,
    RecurrentNetwork,
    StoreModel,
    unsupported_error,
)
from pliant.api.model_name import RANDOM, model_name
from pliant.errors import InputError, ModelError
from pliant.models.hf.config import TEXT_FAMILIES, model_type
from pliant.models.hf.hub import download_model
from pliant.models.onnx.onnx_folder import SUFFIX, onnx_in
from pliant.models.recurrent.recurrent_spec import MODEL_TYPE as RECURRENT
from pliant.settings import user_path
from pliant.store.manifest import MANIFEST

Source = str | os.PathLike[str] | bytes | Any
"""`Any` is an onnx.ModelProto, or a Model that was resolved before."""

_CONFIG, _PROGRAM = "config.json", "program.json"
_MARKERS = {MANIFEST: "a store", _PROGRAM: "a compiled model", _CONFIG: "a model directory"}
"""The files that mark a model directory, and its kind."""
_ASSETS = Path(__file__).parents[1] / "models" / "assets"
# "name" or "owner/name" as the hub spells them; anything else was meant as a path.
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


def resolve(source: Source, download: Callable[[str], Path] = download_model) -> Model:
    """Return the model that `source` names; reads only its configuration.

    `download` fetches a hub id and returns its directory. Raises ModelError if there is no model, naming
    the missing files and the next step, and for a directory with two kinds of model; InputError for a value
    of another type.
    """
    if isinstance(source, Model):
        return source
    if not isinstance(source, str | os.PathLike):
        return OnnxGraph("model", _onnx_content(source))
    text = os.fspath(source)
    name = model_name(text)
    if text.startswith(RANDOM):
        return _random(name, text.removeprefix(RANDOM))
    path = user_path(text)
    mode = _mode(path) if text else None
    if mode is not None and stat.S_ISDIR(mode):
        marker = _marker(path)
        if marker in {None, _CONFIG} and (graph := onnx_in(path)) and _is_file(graph):
            return OnnxGraph(name, graph)
        if marker is not None:
            return _of_directory(name, path, marker)
    if text in shipped_models():
        return _of_directory(name, _ASSETS / text, _CONFIG)
    if mode is not None:
        return _unmarked(name, path, mode)
    _check_link(path)
    if path.suffix == SUFFIX:
        raise ModelError(f"there is no file {text!r}.")
    if not _HUB_ID.fullmatch(text):
        raise ModelError(
            f"there is no directory {text!r}, and it is not a hub id (owner/name); models that ship with "
            f"pliant are {', '.join(shipped_models())}."
        )
    directory = _downloaded(text, download)
    return _of_directory(name, directory, _marker(directory) or _CONFIG)


def resolve_elastic(source: Source, verb: str) -> ElasticModel:
    """Return the elastic model that `source` names. Raises ModelError naming the commands for other kinds."""
    model = resolve(source)
    if isinstance(model, ElasticModel):
        return model
    raise unsupported_error(model, f"pliant {verb}")


def shipped_models() -> tuple[str, ...]:
    """Return the names of the models that ship with pliant."""
    return tuple(sorted(path.parent.name for path in _ASSETS.glob(f"*/{_CONFIG}")))


def _downloaded(name: str, download: Callable[[str], Path]) -> Path:
    try:
        return download(name)
    except ModelError as error:
        if "/" in name:
            raise
        # Nearly all models of the hub have an owner: this is a shipped model or a folder, mistyped.
        shipped = ", ".join(shipped_models())
        raise ModelError(f"{error} Models that ship with pliant are {shipped}.") from error


def _onnx_content(source: Any) -> Any:
    if isinstance(source, bytes | bytearray | memoryview):
        return bytes(source)
    if hasattr(source, "SerializeToString"):
        return source
    raise InputError(f"a model is a path, bytes or a ModelProto, not {type(source).__name__}.")


def _random(name: str, text: str) -> Model:
    """Resolve `CONFIG[:SEED]`: a known name, or a JSON file, whose content determines the kind."""
    from pliant.models.encoder.encoder_random import known_configs
    from pliant.models.recurrent.recurrent_source import known_recurrent

    config, _, seed = text.rpartition(":")
    is_seeded = bool(config) and seed.isascii() and seed.isdigit() and len(seed) < 20
    weights = RandomWeights(config, int(seed)) if is_seeded else RandomWeights(text, 0)
    if weights.config in known_recurrent():
        return RecurrentNetwork(name, weights)
    if weights.config in known_configs():
        return EncoderModel(name, weights)
    path = Path(weights.config)
    mode = _mode(path) if weights.config else None
    if mode is None or not stat.S_ISREG(mode):
        raise ModelError(
            f"{weights.config} is not a configuration file, and not one of those in pliant: "
            f"{', '.join((*known_recurrent(), *known_configs()))}."
        )
    return RecurrentNetwork(name, weights) if model_type(path) == RECURRENT else EncoderModel(name, weights)


def _of_directory(name: str, path: Path, marker: str) -> Model:
    if marker == MANIFEST:
        return StoreModel(name, path)
    if marker == _PROGRAM:
        return CompiledProgram(name, path)
    family = model_type(path / _CONFIG)
    if family == RECURRENT:
        return RecurrentNetwork(name, path)
    if family in TEXT_FAMILIES:
        return CheckpointModel(name, path)
    from pliant.models.encoder.encoder_directory import READERS

    if family in READERS:
        return EncoderModel(name, path)
    raise ModelError(
        f"{path / _CONFIG}: model_type {family!r} is not supported; pliant runs "
        f"{', '.join((*TEXT_FAMILIES, *READERS, RECURRENT))}."
    )


def _unmarked(name: str, path: Path, mode: int) -> OnnxGraph:
    """Return an ONNX file. Raises ModelError for other files, and for a directory without a model."""
    if stat.S_ISDIR(mode):
        what = ", ".join(f"{marker} ({kind})" for marker, kind in _MARKERS.items())
        raise ModelError(
            f"{path} is not a model: {path / _CONFIG} is missing. A model has one of {what}, or a single "
            f"file *{SUFFIX}; a model directory also has safetensors and tokenizer.json."
        )
    if stat.S_ISREG(mode) and (path.suffix == SUFFIX or _begins_as_onnx(path)):
        return OnnxGraph(name, path)
    raise ModelError(
        f"{path} is a file, but not an ONNX model: name a file .onnx, or name the directory with {_CONFIG}."
    )


def _begins_as_onnx(path: Path) -> bool:
    """Return whether the file starts with a ModelProto's `ir_version`; safetensors have a brace at byte 8."""
    try:
        with path.open("rb") as file:
            head = file.read(9)
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}. Check its permissions.") from error
    return head[:1] == b"\x08" and head[8:] != b"{"


def _marker(directory: Path) -> str | None:
    """Return the marker file of a directory, None without one. Raises ModelError if there are two."""
    found = [marker for marker in _MARKERS if _is_file(directory / marker)]
    if len(found) > 1:
        what = " and ".join(f"{_MARKERS[marker]} ({marker})" for marker in found)
        raise ModelError(
            f"{directory} is {what} at once: move the files of one to another directory and name that."
        )
    return found[0] if found else None


def _is_file(path: Path) -> bool:
    mode = _mode(path)
    if mode is None:
        _check_link(path)
    return mode is not None and stat.S_ISREG(mode)


def _check_link(path: Path) -> None:
    """Raise ModelError for a link whose target does not exist."""
    if path.is_symlink():
        raise ModelError(f"{path} is a link to {os.readlink(path)}, which does not exist: correct the link.")


def _mode(path: Path) -> int | None:
    """Return the mode of a path; None if it does not exist. Raises ModelError if it cannot be read."""
    try:
        return os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ModelError(
            f"{path} cannot be read: {error.strerror}. Check its name and permissions."
        ) from error
    except ValueError:  # a null character
        return None
