"""Find and read single tensors of safetensors files."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open

from pliant.arrays import Float, Float32, UInt8
from pliant.errors import ModelError

# The numpy type for reading each safetensors type; BF16 is the upper half of a float32.
_READ_AS: Mapping[str, np.dtype] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
    "U8": np.dtype("u1"),
}
FLOATS = ("F32", "F16", "BF16")


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """The location of one tensor; `offset` is in bytes from the beginning of `file`."""

    file: Path
    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int

    def __str__(self) -> str:
        return f"tensor {self.name} of {self.file}"


def index_weights(directory: Path) -> dict[str, StoredTensor]:
    """Every tensor of a model directory by name, from model.safetensors or the files its index lists.

    Reads headers only. Raises ModelError when there are no safetensors, or one is missing, truncated
    or damaged.
    """
    tensors: dict[str, StoredTensor] = {}
    for file in _files(directory):
        tensors.update((t.name, t) for t in _index_file(file))
    return tensors


def read_float(tensor: StoredTensor) -> Float32[np.ndarray, "..."]:
    """The values in float32; the upcast from F16 and BF16 is exact. Raises ModelError on NaN or infinity."""
    values: Float32[np.ndarray, ...] = read_stored(tensor).astype(np.float32, copy=False)
    return values


def read_stored(tensor: StoredTensor) -> Float[np.ndarray, "..."]:
    """The values in their stored type, BF16 as float32. Raises ModelError on NaN or infinity."""
    if tensor.dtype not in FLOATS:
        raise ModelError(
            f"{tensor} is {tensor.dtype}, but weights are one of {', '.join(FLOATS)}; convert it."
        )
    raw = _read(tensor)
    values = (raw.astype(np.uint32) << 16).view(np.float32) if tensor.dtype == "BF16" else raw
    bad = ~np.isfinite(values)
    if bad.any():
        at = tuple(int(i) for i in np.argwhere(bad)[0])
        raise ModelError(
            f"{tensor} holds {int(bad.sum())} values that are NaN or infinite, the first at {list(at)}; "
            "the checkpoint is damaged or its training diverged."
        )
    return values


def read_bytes(tensor: StoredTensor) -> UInt8[np.ndarray, "..."]:
    """The values of a U8 tensor."""
    if tensor.dtype != "U8":
        raise ModelError(f"{tensor} is {tensor.dtype}, but codes are U8.")
    return _read(tensor)


def _files(directory: Path) -> list[Path]:
    single, index = directory / "model.safetensors", directory / "model.safetensors.index.json"
    if single.is_file():
        return [single]
    if index.is_file():
        return _sharded_files(directory, index)
    if (directory / "pytorch_model.bin").exists() or (directory / "pytorch_model.bin.index.json").exists():
        raise ModelError(
            f"{directory} has its weights as pytorch_model.bin, a pickle, which can run code when opened; "
            "convert it: transformers.AutoModel.from_pretrained(...).save_pretrained(...) writes safetensors."
        )
    graph = next(iter(sorted([*directory.glob("*.onnx"), *directory.glob("onnx/*.onnx")])), None)
    if graph is not None:
        raise ModelError(f"{directory} has no safetensors, but an ONNX model: name that file, {graph}.")
    raise ModelError(f"{single} is missing; a model directory holds model.safetensors or its sharded index.")


def _sharded_files(directory: Path, index: Path) -> list[Path]:
    try:
        names = sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
        files = [directory / name for name in names]
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise ModelError(f"{index} is not a safetensors index: {e!r}.") from e
    for file in files:
        if file.parent != directory:
            raise ModelError(f"{index} points outside of its directory: {file}.")
        if not file.is_file():
            raise ModelError(f"{file} is missing, but {index.name} lists it; download the model again.")
    return files


def _index_file(file: Path) -> list[StoredTensor]:
    """safe_open checks the header (sizes, overlaps, length of the file); offsets are then read from it."""
    try:
        with safe_open(file, framework="np") as opened:
            names = set(opened.keys())
        with file.open("rb") as raw:
            header_bytes = int.from_bytes(raw.read(8), "little")
            header = json.loads(raw.read(header_bytes))
    except (SafetensorError, OSError, ValueError) as e:
        raise ModelError(f"{file} is truncated or damaged: {e}. Download or write it again.") from e
    start = 8 + header_bytes
    return [
        StoredTensor(file, name, e["dtype"], tuple(e["shape"]), start + e["data_offsets"][0])
        for name, e in header.items()
        if name in names
    ]


def _read(tensor: StoredTensor) -> np.ndarray:
    count = int(np.prod(tensor.shape, dtype=np.int64))
    try:
        raw = np.fromfile(tensor.file, _READ_AS[tensor.dtype], count, offset=tensor.offset)
    except OSError as e:
        raise ModelError(f"{tensor} cannot be read: {e}.") from e
    if raw.size != count:
        raise ModelError(f"{tensor} ends after {raw.size} of {count} values; the file is truncated.")
    return raw.reshape(tensor.shape)
