"""Encoders from Hugging Face directories: files mapped, tensors by name."""

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import final

import numpy as np

from pliant.arrays import Float32, Integer
from pliant.errors import ModelError
from pliant.ir.graph import numpy_type
from pliant.models.encoder.bert import make_bert
from pliant.models.encoder.encoder_architecture import EncoderArchitecture
from pliant.models.encoder.encoder_source import Encoder
from pliant.models.encoder.mobilebert import read_mobilebert
from pliant.models.encoder.vit import read_vit
from pliant.models.encoder.whisper import read_whisper
from pliant.models.hf.checkpoint import WORD, open_checkpoint
from pliant.models.hf.config import model_type, module_files, read_config_file
from pliant.models.hf.safetensors_file import FLOATS, StoredTensor, index_weights
from pliant.models.identity import files_identity
from pliant.models.onnx.onnx_external import MappedFile, map_file
from pliant.models.word_table import QuantizedTable

_DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
READERS: Mapping[str, Callable[[Path, Collection[str]], EncoderArchitecture]] = {
    "mobilebert": read_mobilebert,
    "vit": read_vit,
    "whisper": read_whisper,
}
"""Readers of families with their own module; all others are read as text models."""


def read_family(path: Path, tensor_names: Collection[str] = ()) -> EncoderArchitecture:
    """The family that a configuration file describes.

    `tensor_names` decide the head only where the configuration names no architecture. Raises ModelError
    naming file and key for anything missing, mistyped or not supported.
    """
    reader = READERS.get(model_type(path))
    return make_bert(read_config_file(path, tensor_names)) if reader is None else reader(path, tensor_names)


def open_directory(directory: Path, cache: Path) -> Encoder:
    """The encoder of a Hugging Face directory; only headers are read, except that the identity hashes all
    files once.

    `cache` stores hashes of files by path, size and modification time. Raises ModelError for a missing or
    damaged file, an unsupported configuration, and tensors that are missing (all at once) or of the wrong
    shape or type.
    """
    if not directory.is_dir():
        raise ModelError(f"{directory} is not a directory; a model is a directory with config.json.")
    present = index_weights(directory)
    config, table = directory / "config.json", None
    family = read_family(config, present.keys())
    if model_type(config) in READERS:
        stored = _match(directory, family, present)
    else:
        checkpoint = open_checkpoint(directory)
        stored, table = dict(checkpoint.stored), checkpoint.embedding_codes()
    files = sorted({tensor.file for tensor in present.values()})
    identity = files_identity((config, *files, *module_files(directory)), cache)
    weights = _DirectoryWeights(directory, stored, table, identity)
    tokenizer = directory if (directory / "tokenizer.json").is_file() else None
    return Encoder(family, weights, tokenizer)


def shapes_of(family: EncoderArchitecture) -> dict[str, tuple[int, ...]]:
    """Canonical name and shape of every tensor of a model."""
    spec = family.spec
    layers = [named for i in range(spec.n_layers) for named in spec.layer(i).tensors]
    return {**family.end_shapes(), **dict(layers)}


@final
class _DirectoryWeights:
    """Tensors of mapped files; a word table in codes is decoded row by row."""

    def __init__(
        self,
        directory: Path,
        stored: Mapping[str, StoredTensor],
        table: QuantizedTable | None,
        identity: str,
    ) -> None:
        self.identity = identity
        self._directory, self._stored, self._table = directory, stored, table
        self._files: dict[Path, MappedFile] = {}

    def view(self, name: str, /) -> np.ndarray:
        if name == WORD and self._table is not None:
            return self._table.decode_all()
        if name not in self._stored:
            raise ModelError(f"{self._directory} has no tensor {name!r}; it is not part of this model.")
        tensor = self._stored[name]
        if tensor.file not in self._files:
            self._files[tensor.file] = map_file(tensor.file)
        file = self._files[tensor.file]
        file.check_same()
        count = int(np.prod(tensor.shape, dtype=np.int64))
        try:
            flat = np.frombuffer(file.memory, numpy_type(_DTYPES[tensor.dtype]), count, tensor.offset)
        except ValueError as e:
            raise ModelError(f"{tensor} ends past the file's {len(file.memory)} bytes; it was cut.") from e
        # Kernels need aligned floats; a header of an odd length leaves them unaligned.
        return np.require(flat, requirements="A").reshape(tensor.shape)

    def rows(self, name: str, ids: Integer[np.ndarray, " n"], /) -> Float32[np.ndarray, "n columns"]:
        if name == WORD and self._table is not None:
            return self._table.decode(ids)
        found: np.ndarray = self.view(name)[ids].astype(np.float32)
        if not np.isfinite(found).all():
            raise ModelError(f"{self._stored[name]} contains NaN or infinity in the requested rows.")
        return found

    def release(self) -> None:
        for file in self._files.values():
            file.drop_pages()


def _match(
    directory: Path, family: EncoderArchitecture, present: Mapping[str, StoredTensor]
) -> dict[str, StoredTensor]:
    """The stored tensor of each canonical name; one error names everything that does not fit."""
    stored: dict[str, StoredTensor] = {}
    missing, wrong = [], []
    for name, shape in shapes_of(family).items():
        names = family.saved_names(name)
        found = next((present[n] for n in names if n in present), None)
        if found is None:
            missing.append(names[0])
            continue
        stored[name] = found
        if found.shape != shape:
            wrong.append(f"{found.name} is {list(found.shape)}, not {list(shape)}")
        elif found.dtype not in FLOATS:
            wrong.append(f"{found.name} is {found.dtype}, not one of {', '.join(FLOATS)}")
    kind = family.spec.family
    if missing:
        raise ModelError(f"{directory} lacks {len(missing)} tensors of this {kind}: {', '.join(missing)}.")
    if wrong:
        raise ModelError(f"{directory} has tensors that do not match its config.json: {'; '.join(wrong)}.")
    return stored
