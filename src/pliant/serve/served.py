"""The models a node can answer with by itself, opened by what a user calls them. Knows no HTTP and no route.

A `Served` is all that a node needs of a model: another kind is another class of that form.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Protocol, final

import numpy as np

from pliant import api
from pliant.compile.saved import PROGRAM
from pliant.compiled import compile as compile_onnx
from pliant.compiled import load
from pliant.errors import InputError
from pliant.ir.port import Port
from pliant.models.tokenizer import open_tokenizer
from pliant.run.answering import Answering
from pliant.run.session import Session
from pliant.serve.inference import Signature, signature
from pliant.serve.tensors import numpy_dtype

Tensors = Mapping[str, np.ndarray]


class Served(Protocol):
    """A model: `length` is asked on the node's event loop and must be quick, `answer` on its worker thread.

    Both raise InputError for what the model cannot read. Time grows with the length as a polynomial of
    `degree`: 2 for attention, 1 for recurrence. `sample` is an input of about some length, to learn it from.
    """

    @property
    def signature(self) -> Signature: ...
    @property
    def max_length(self) -> int: ...
    @property
    def degree(self) -> Literal[1, 2]: ...
    def length(self, tensors: Tensors) -> int: ...
    def answer(self, tensors: Tensors) -> Tensors: ...
    def sample(self, length: int) -> Tensors: ...
    def close(self) -> None: ...


@final
class TextClassifier:
    """A session that answers text: `text` BYTES [1] -> `logits` FP32 [1, labels], `label` BYTES [1].

    The logits are normalised: logarithms of the probabilities, which is all that a session tells.
    """

    degree: Literal[1, 2] = 2

    def __init__(self, name: str, session: Session) -> None:
        labels = session.store.spec.head.labels
        if labels is None:
            raise InputError(f"{name} answers with vectors, not labels; serve a classifier.")
        self._session = session
        self._tokenizer = open_tokenizer(session.store.path, session.store.spec)
        self.max_length = session.store.spec.max_tokens
        self.signature = signature(
            name,
            "pliant_session",
            (Port("text", "bytes", (1,)),),
            (Port("logits", "float32", (1, len(labels))), Port("label", "bytes", (1,))),
        )

    def length(self, tensors: Tensors) -> int:
        """Tokens."""
        return self._tokenizer.encode(_text(tensors)).n_tokens

    def answer(self, tensors: Tensors) -> Tensors:
        reply = self._session(_text(tensors))
        assert reply.scores is not None
        assert reply.label is not None
        floor = float(np.finfo(np.float32).tiny)
        logits = np.log(np.maximum(np.array([reply.scores]), floor)).astype(np.float32)
        return {"logits": logits, "label": _bytes(reply.label)}

    def sample(self, length: int) -> Tensors:
        return {"text": _bytes(" ".join(["good"] * max(1, length - 2)))}

    def close(self) -> None:
        self._session.close()


@final
class ArrayModel:
    """A compiled ONNX model. Its length is the product of the first input's open dimensions."""

    degree: Literal[1, 2] = 2

    def __init__(self, name: str, session: Answering, max_length: int = 4096) -> None:
        self._session = session
        self.max_length = max_length
        self.signature = signature(name, "pliant_compiled", session.inputs, session.outputs)
        first = session.inputs[0]
        self._open = [i for i, dim in enumerate(first.dims or ()) if not isinstance(dim, int)]
        self._first = first.name

    def length(self, tensors: Tensors) -> int:
        shape = tensors[self._first].shape
        return int(np.prod([shape[i] for i in self._open])) if self._open else int(np.prod(shape))

    def answer(self, tensors: Tensors) -> Tensors:
        answers = self._session.run(dict(tensors))
        return {name: np.asarray(array) for name, array in answers.items()}

    def sample(self, length: int) -> Tensors:
        dims = {port.name: port.dims or () for port in self.signature.inputs}
        shapes = {x: [d if isinstance(d, int) else 1 for d in ds] for x, ds in dims.items()}
        for port in self.signature.inputs:
            open_axes = [i for i, d in enumerate(dims[port.name]) if not isinstance(d, int)]
            if open_axes:
                shapes[port.name][open_axes[-1]] = max(1, length)
        return {p.name: np.ones(shapes[p.name], numpy_dtype(p.dtype)) for p in self.signature.inputs}

    def close(self) -> None:
        self._session.close()


def open_served(source: str, *, latency: str, preload: str, threads: int | None) -> Served:
    """The model that `source` names: an ONNX file, what `pliant compile -o` wrote, what `pliant run` takes.

    `latency` and `preload` are those of a session. Raises PliantError as these do.
    """
    path = Path(source)
    if path.suffix == ".onnx":
        return ArrayModel(
            path.stem, compile_onnx(path, threads=threads, cache=api.cache_directory() / "kernels")
        )
    if (path / PROGRAM).is_file():
        return ArrayModel(path.name, load(path, threads=threads))
    session = api.open(source, latency=latency, preload=preload, threads=threads, cache=api.cache_directory())
    return TextClassifier(path.name, session)


def _text(tensors: Tensors) -> str:
    try:
        return str(tensors["text"][0].decode())
    except UnicodeDecodeError as error:
        raise InputError(f"`text` is not UTF-8 at byte {error.start}.") from error


def _bytes(text: str) -> np.ndarray:
    array = np.empty(1, object)
    array[0] = text.encode()
    return array
