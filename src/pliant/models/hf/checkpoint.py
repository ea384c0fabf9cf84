"""Open and write Hugging Face model directories by canonical tensor names."""

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save_file

from pliant.arrays import Float32
from pliant.errors import ModelError
from pliant.models.hf.config import read_config, write_config, write_pooling
from pliant.models.hf.safetensors_file import FLOATS, StoredTensor, index_weights, read_bytes, read_float
from pliant.models.hf.weight_names import find_name, saved_name
from pliant.models.spec import ModelSpec, Precision, tensor_shapes
from pliant.models.word_table import QuantizedTable

WORD = "embeddings.word"
_LAYER_PARTS = ("query", "key", "value", "output", "up", "down")
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
_DTYPE: Mapping[Precision, tuple[np.dtype, str]] = {
    "F32": (np.dtype(np.float32), "float32"),
    "F16": (np.dtype(np.float16), "float16"),
}


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """An opened model directory: every tensor of `spec` is present, of the right shape, and unread."""

    spec: ModelSpec
    directory: Path
    stored: Mapping[str, StoredTensor]
    table: tuple[StoredTensor, StoredTensor] | None  # codes and codebook of the word embeddings

    def tensor(self, name: str) -> Float32[np.ndarray, "..."]:
        """The tensor of canonical `name` (see `spec.tensor_shapes`) in float32, read now.

        Raises ModelError naming file and tensor when it holds NaN or infinity or cannot be read.
        """
        if name == WORD and (table := self.embedding_codes()) is not None:
            return table.decode_all()
        if name not in self.stored:
            raise ModelError(f"{self.directory} has no tensor {name!r}; it is not part of this model.")
        return read_float(self.stored[name])

    def embedding_codes(self) -> QuantizedTable | None:
        """The word embeddings when they are stored as 6-bit codes, else None."""
        if self.table is None:
            return None
        codes, codebook = self.table
        try:
            return QuantizedTable(read_bytes(codes), read_float(codebook), self.spec.embedding)
        except ModelError as e:
            raise ModelError(f"{codes.file}, {codes.name}: {e}") from e


def open_checkpoint(directory: Path) -> Checkpoint:
    """Read config.json and the headers of the weights, and check that they match.

    Raises ModelError, naming file and key or tensor, for: a missing or damaged file; a model type,
    architecture, activation or feature pliant does not run; tensors that are missing (all at once) or
    of the wrong shape or type; layers that are not in the configuration; a classifier whose rows do not match
    the labels.
    """
    if not directory.is_dir():
        raise ModelError(f"{directory} is not a directory; a model is a directory with config.json.")
    present = index_weights(directory)
    spec = read_config(directory, present.keys())
    table = _find_table(spec, present)
    stored = _match(directory, spec, present, has_table=table is not None)
    return Checkpoint(replace(spec, precision=_precision(spec, stored)), directory, stored, table)


def save_checkpoint(
    directory: Path,
    spec: ModelSpec,
    tensors: Mapping[str, np.ndarray],
    precision: Literal["F32", "F16"],
    tokenizer_from: Path,
    table: QuantizedTable | None = None,
) -> Path:
    """Write a directory that `open_checkpoint` and transformers read; `tensors` have canonical names.

    Floats are rounded to `precision`; with a `table`, the word embeddings are stored as its codes and
    may be absent from `tensors`. Everything is written to a temporary directory and renamed at the end: a
    failure leaves no `directory`. Raises ModelError when `directory` already exists, when a tensor is
    missing, of the wrong shape, or has a value that `precision` cannot represent, and on write errors.
    """
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise ModelError(f"{directory} already exists and is not empty; choose another name or remove it.")
    dtype, torch_name = _DTYPE[precision]
    weights = dict(_tensors_to_write(spec, tensors, dtype, table))
    texts = {"config.json": write_config(spec, torch_name)}
    if spec.head.labels is None:
        texts |= write_pooling(spec.head, spec.hidden)
    try:
        with _atomic_directory(directory) as partial:
            _copy_tokenizer(tokenizer_from, partial)
            save_file(weights, partial / "model.safetensors", metadata={"format": "pt"})
            for name, value in texts.items():
                (partial / name).parent.mkdir(exist_ok=True)
                (partial / name).write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
    except (OSError, SafetensorError) as e:
        raise ModelError(f"{directory} cannot be written: {e}. No files were left there.") from e
    return directory


def _find_table(
    spec: ModelSpec, present: Mapping[str, StoredTensor]
) -> tuple[StoredTensor, StoredTensor] | None:
    codes, codebook = (
        find_name(spec.family, WORD, {n.removesuffix(end): n for n in present if n.endswith(end)})
        for end in (".codes", ".codebook")
    )
    if codes is None or codebook is None:
        return None
    table = present[codes + ".codes"], present[codebook + ".codebook"]
    expected = (spec.vocab, 6, -(-spec.embedding // 8)), (64,)
    for stored, shape in zip(table, expected, strict=True):
        if stored.shape != shape:
            raise ModelError(
                f"{stored} has shape {list(stored.shape)}, but config.json requires {list(shape)}."
            )
    return table


def _match(
    directory: Path, spec: ModelSpec, present: Mapping[str, StoredTensor], has_table: bool
) -> dict[str, StoredTensor]:
    """The stored tensor of each canonical name; one error names everything that does not fit."""
    stored: dict[str, StoredTensor] = {}
    missing, wrong = [], []
    for name, shape in tensor_shapes(spec):
        if name == WORD and has_table:
            continue
        found = find_name(spec.family, name, present)
        if found is None:
            missing.append(saved_name(spec.family, name))
            continue
        stored[name] = present[found]
        if present[found].shape != shape:
            wrong.append(_wrong_shape(spec, name, present[found], shape))
        elif present[found].dtype not in FLOATS:
            wrong.append(f"{found} is {present[found].dtype}, not one of {', '.join(FLOATS)}")
    if missing:
        raise ModelError(
            f"{directory} lacks {len(missing)} tensors of this {spec.family}: {', '.join(missing)}."
        )
    if wrong:
        raise ModelError(f"{directory} has tensors that do not match its config.json: {'; '.join(wrong)}.")
    extra = find_name(spec.family, f"layers.{spec.n_layers}.query.weight", present)
    if extra is not None:
        raise ModelError(
            f"{directory}: config.json says {spec.n_layers} layers, but the weights contain {extra}."
        )
    return stored


def _wrong_shape(spec: ModelSpec, name: str, found: StoredTensor, shape: tuple[int, ...]) -> str:
    if name.startswith("head.classifier") and spec.head.labels is not None and len(found.shape) == len(shape):
        return f"{found.name} has {found.shape[0]} rows, but id2label names {len(spec.head.labels)} labels"
    return f"{found.name} is {list(found.shape)}, not {list(shape)}"


def _precision(spec: ModelSpec, stored: Mapping[str, StoredTensor]) -> Precision:
    """The common type of the layers' matrices; mixed ones are read as F32, which holds them all."""
    kinds = {stored[f"layers.{i}.{part}.weight"].dtype for i in range(spec.n_layers) for part in _LAYER_PARTS}
    if kinds == {"F16"}:
        return "F16"
    if kinds == {"BF16"}:
        return "BF16"
    return "F32"


def _tensors_to_write(
    spec: ModelSpec, tensors: Mapping[str, np.ndarray], dtype: np.dtype, table: QuantizedTable | None
) -> Iterator[tuple[str, np.ndarray]]:
    for name, shape in tensor_shapes(spec):
        hf_name = saved_name(spec.family, name)
        if name == WORD and table is not None:
            if (table.rows, table.columns) != shape:
                raise ModelError(
                    f"the table is [{table.rows}, {table.columns}], but {name} is {list(shape)}."
                )
            yield hf_name + ".codes", np.ascontiguousarray(table.codes)
            yield hf_name + ".codebook", np.ascontiguousarray(table.codebook)
            continue
        if name not in tensors:
            raise ModelError(f"tensor {name} is missing; this {spec.family} cannot be written without it.")
        if tensors[name].shape != shape:
            raise ModelError(
                f"tensor {name} is {list(tensors[name].shape)}, but the model requires {list(shape)}."
            )
        with np.errstate(over="ignore"):
            rounded = np.ascontiguousarray(tensors[name], dtype=dtype)
        if not np.isfinite(rounded).all():
            raise ModelError(
                f"tensor {name} holds values that are NaN or beyond {dtype.name}; write it as F32."
            )
        yield hf_name, rounded


def _copy_tokenizer(source: Path, target: Path) -> None:
    if not (source / "tokenizer.json").is_file():
        raise ModelError(f"{source / 'tokenizer.json'} is missing; a checkpoint carries its tokenizer.")
    for name in _TOKENIZER_FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)


@contextlib.contextmanager
def _atomic_directory(directory: Path) -> Iterator[Path]:
    """A temporary directory that is renamed to `directory` on success and removed on failure."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{directory.name}.partial-", dir=directory.parent))
    try:
        partial.chmod(0o755)  # mkdtemp's 0700 would keep other users out of the finished model
        yield partial
        os.replace(partial, directory)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
