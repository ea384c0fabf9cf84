"""The content hash of the model that a node serves, whatever kind of model it is."""

from pathlib import Path

from pliant.api import open_elastic as api
from pliant.compiler.aot.compiled_directory import PROGRAM, saved_identity
from pliant.models.identity import directory_identity
from pliant.models.onnx.onnx_file import onnx_identity
from pliant.models.recurrent.recurrent_source import RANDOM
from pliant.settings import cache_folder
from pliant.store.manifest import read_manifest
from pliant.store.store_encoder import open_encoder


def content_identity(source: str) -> str:
    """SHA-256, in hexadecimal digits, of the transformer or ONNX model that `source` names.

    Equal for a session and a cluster over the same store or directory, and for an ONNX file and what was
    compiled from it; not for a directory and a store packed from it, whose weights are rounded. Raises
    ModelError, StoreError.
    """
    path, cache = Path(source), cache_folder()
    if source.startswith(f"{RANDOM}:"):
        return open_encoder(source).identity
    if path.suffix == ".onnx":
        return onnx_identity(path, cache)
    if (path / PROGRAM).is_file():
        return saved_identity(path)
    if api.is_store(path):
        return read_manifest(path).identity
    return directory_identity(api.model_directory(source), cache)
