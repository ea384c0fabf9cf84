"""Open an ONNX model: bytes checked, weights mapped, inputs described."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError, Message

from pliant.errors import GraphError, InputError, ModelError
from pliant.ir.port import Port
from pliant.models.identity import files_identity
from pliant.models.onnx.onnx_external import ExternalData, MappedFile, map_file
from pliant.models.onnx.onnx_nodes import one_line
from pliant.models.onnx.onnx_tensor import array_of, dtype_name
from pliant.models.onnx.onnx_wire import outline

_DEFAULT_DOMAINS = ("", "ai.onnx")

_PLACEHOLDERS = frozenset(("", "?", "*", "-1", "None"))
"""Strings that exporters write for "any size". They are not names: two of them in a model need not be
equal.
"""

_HOLDERS = ("optional_type", "sequence_type")
"""Non-tensor types of inputs and outputs: the first may contain the second, both may contain a tensor."""


@dataclass(frozen=True, eq=False)
class OnnxModel:
    """A checked model: `proto` without its initializers, which are arrays in `constants` (read-only).

    `opsets` gives the version of each operator domain, `source` names the model in messages. `content` are
    the model's bytes, memory-mapped for a file.
    """

    content: memoryview
    proto: Any
    constants: Mapping[str, np.ndarray]
    opsets: Mapping[str, int]
    external: ExternalData
    file: MappedFile | None
    source: str

    def drop_pages(self) -> None:
        """Let the system reclaim the pages of mapped weights; they are read again when needed."""
        for file in self._files:
            file.drop_pages()

    def check_same(self) -> None:
        """Raise ModelError if a file was written to since the model was opened."""
        for file in self._files:
            file.check_same()

    def identity(self, cache: Path) -> str:
        """The content hash: of the file and its external weight files, or of the bytes.

        Hashes of files are stored in `cache`. Raises ModelError for a file that cannot be read.
        """
        if self.file is None:
            return sha256(self.content).hexdigest()
        return files_identity((self.file.path, *sorted(f.path for f in self.external.files)), cache)

    @property
    def _files(self) -> tuple[MappedFile, ...]:
        return self.external.files if self.file is None else (self.file, *self.external.files)

    @cached_property
    def inputs(self) -> tuple[Port, ...]:
        """The required inputs; an input with an initializer is a constant."""
        return tuple(_port(v) for v in self.proto.graph.input if v.name not in self.constants)

    @cached_property
    def outputs(self) -> tuple[Port, ...]:
        return tuple(_port(v) for v in self.proto.graph.output)

    @cached_property
    def symbols(self) -> tuple[str, ...]:
        """Names of symbolic dimensions, in the inputs' order."""
        named = (d for port in self.inputs for d in port.dims or () if isinstance(d, str))
        return tuple(dict.fromkeys(named))


def open_onnx(source: "str | os.PathLike[str] | bytes | Any") -> OnnxModel:
    """A model from its file, its bytes, or a ModelProto.

    Weights of a file are mapped, not read. Raises ModelError for a missing or damaged model or weight file;
    GraphError for a graph that breaks ONNX's rules or holds tensors of types not supported; InputError for
    another kind of source.
    """
    if isinstance(source, Message):
        return _open(memoryview(_serialise(source)), None, "the model")
    if isinstance(source, bytes | bytearray | memoryview):
        return _open(memoryview(source), None, "the model")
    if not isinstance(source, str | os.PathLike):
        raise InputError(f"a model is a path, bytes or a ModelProto, not {type(source).__name__}.")
    path = Path(source)
    if "\0" in str(path) or not path.is_file():
        raise ModelError(f"there is no file {str(path)!r}.")
    file = map_file(path)
    return _open(file.memory, file, str(path))


def _open(data: memoryview, file: MappedFile | None, source: str) -> OnnxModel:
    proto = onnx.ModelProto()
    try:
        outlined = outline(data)
        proto.ParseFromString(outlined.model)
    except DecodeError as error:
        raise ModelError(f"{source} is not an ONNX model, or is damaged: {error}.") from error
    except ModelError as error:
        raise ModelError(f"{source}: {error}") from error
    if not proto.HasField("graph"):
        raise ModelError(f"{source} has no graph: it is empty, or not an ONNX model.")
    if proto.graph.sparse_initializer:
        names = [t.values.name for t in proto.graph.sparse_initializer]
        raise GraphError(f"{source} has sparse weights {names}, which are not supported; make them dense.")
    _check_names(proto, source)
    external = ExternalData(None if file is None else file.path.parent)
    constants = {}
    for tensor, span in zip(proto.graph.initializer, outlined.weights, strict=True):
        raw = None if span is None else data[span.start : span.start + span.n_bytes]
        if tensor.name in constants:
            raise GraphError(f"{source} has two initializers {tensor.name!r}.")
        constants[tensor.name] = array_of(tensor, external, raw)
    _check(proto, source)
    del proto.graph.initializer[:]
    opsets = {"" if o.domain in _DEFAULT_DOMAINS else o.domain: o.version for o in proto.opset_import}
    return OnnxModel(data, proto, constants, opsets, external, file, source)


def _check_names(proto: Any, source: str) -> None:
    """Raise GraphError for text that is not UTF-8, which protobuf returns as bytes or drops."""
    try:
        odd = next((text for text in _texts(proto) if not isinstance(text, str)), None)
    except UnicodeError as error:
        raise GraphError(f"{source} holds names that are not text: {error}.") from error
    if odd is not None:
        raise GraphError(f"{source} holds names that are not text: {odd!r}.")


def _texts(message: Any) -> Iterator[str | bytes]:
    """Every value of a field declared as text: names, domains, dimensions, documentation."""
    for field, value in message.ListFields():
        values = (value,) if isinstance(value, str | bytes | Message) else value
        if field.type == field.TYPE_MESSAGE:
            for inner in values:
                yield from _texts(inner)
        elif field.type == field.TYPE_STRING:
            yield from values


def _check(proto: Any, source: str) -> None:
    """Run ONNX's checker on the model without weights, which become inputs."""
    checked = onnx.ModelProto()
    checked.CopyFrom(proto)
    inputs = {value.name for value in checked.graph.input}
    for value in (*checked.graph.input, *checked.graph.output):
        if value.type.WhichOneof("value") == "tensor_type":  # a missing shape means any shape
            value.type.tensor_type.shape.SetInParent()
    try:
        for tensor in proto.graph.initializer:
            if tensor.name not in inputs:
                type_ = onnx.helper.make_tensor_type_proto(tensor.data_type, list(tensor.dims))
                checked.graph.input.add(name=tensor.name, type=type_)
        del checked.graph.initializer[:]
        onnx.checker.check_model(checked)
    except UnicodeError as error:
        raise GraphError(f"{source} holds names that are not text: {error}.") from error
    except (onnx.checker.ValidationError, RuntimeError, ValueError, IndexError) as error:
        raise GraphError(f"{source} breaks ONNX's rules: {one_line(error)}") from error


def _serialise(proto: Any) -> bytes:
    try:
        return bytes(proto.SerializeToString())
    except (ValueError, RuntimeError) as error:
        raise ModelError(
            f"the ModelProto cannot be serialised ({error}): save it with external data and give its path."
        ) from error


def _port(value: Any) -> Port:
    return _typed_port(value.name, value.type, _HOLDERS)


def _typed_port(name: str, type_: Any, holders: Sequence[str]) -> Port:
    """The port of a type, which may be one of `holders` with another type inside."""
    kind = type_.WhichOneof("value")
    if kind in holders:
        inner = holders[holders.index(kind) + 1 :]
        element = _typed_port(name, getattr(type_, kind).elem_type, inner)
        return Port(name, element.dtype, None, element, kind == "optional_type")
    if kind != "tensor_type":
        what = "has no type" if kind is None else f"is or holds a {kind.removesuffix('_type')}"
        raise GraphError(
            f"{name!r} {what}; only dense tensors, sequences of them and optional ones are supported."
        )
    tensor = type_.tensor_type
    dtype = dtype_name(tensor.elem_type, name)
    if not tensor.HasField("shape"):
        return Port(name, dtype, None)
    return Port(name, dtype, tuple(_dim(d) for d in tensor.shape.dim))


def _dim(dim: Any) -> int | str | None:
    kind = dim.WhichOneof("value")
    if kind == "dim_value":
        # Older exporters wrote 0 or -1 for "any".
        return int(dim.dim_value) if dim.dim_value >= 0 else None
    is_named = kind == "dim_param" and dim.dim_param.strip() not in _PLACEHOLDERS
    return str(dim.dim_param) if is_named else None
