"""The models a node can answer with by itself, opened by what a user calls them.

A `Served` is all that a node needs of a model: another kind is another class of that form.
"""

from math import prod
from typing import Literal, Protocol, final

import numpy as np

from pliant.api.compile_onnx import compile as compile_onnx
from pliant.api.load_compiled import load, shared_pool
from pliant.api.model import (
    CheckpointModel,
    CompiledProgram,
    EncoderModel,
    OnnxGraph,
    RecurrentNetwork,
    StoreModel,
    refused,
)
from pliant.api.open_elastic import WHOLE_S, open_elastic
from pliant.api.resolve import resolve
from pliant.ir.device import Dilation
from pliant.ir.endpoint import Endpoint, Request
from pliant.ir.port import Port
from pliant.models.tokenizer import open_tokenizer
from pliant.plan.submodel.plan_options import Depths, PlanOptions
from pliant.quantities import parse_bytes
from pliant.run.graph.feeds_session import Answering
from pliant.run.graph.recurrent_session import RecurrentModel
from pliant.run.submodel.session import Session, SessionOptions
from pliant.serve.node.elastic_endpoint import ElasticSession
from pliant.serve.node.whole_endpoint import Whole
from pliant.serve.protocol.inference import Signature, signature
from pliant.serve.protocol.oip_tensors import numpy_dtype
from pliant.serve.protocol.text_tensors import Tensors, as_bytes, text_of
from pliant.settings import thread_count


class Served(Protocol):
    """A model: `read` is called on the event loop and must be quick, its `endpoint` answers on a thread.

    Both raise InputError for what the model cannot take; `read` says how long the input is. Time grows with
    that as a polynomial of `degree`: 2 for attention, 1 for recurrence. `sample` is an input of about some
    length, to learn it from. `identity` is the model's content hash: nodes pass requests on only where it
    is the same.
    """

    @property
    def signature(self) -> Signature: ...
    @property
    def identity(self) -> str: ...
    @property
    def max_length(self) -> int: ...
    @property
    def degree(self) -> Literal[1, 2]: ...
    @property
    def endpoint(self) -> Endpoint: ...
    def read(self, tensors: Tensors) -> Request: ...
    def sample(self, length: int) -> Tensors: ...
    def close(self) -> None: ...


@final
class TextClassifier:
    """A session that answers text: `text` BYTES [1] -> `logits` FP32 [1, labels], `label` BYTES [1]."""

    degree: Literal[1, 2] = 2

    def __init__(self, name: str, identity: str, session: Session) -> None:
        self.identity = identity
        self.endpoint = self._elastic = ElasticSession(name, session)
        labels = session.store.spec.head.labels or ()
        self._tokenizer = open_tokenizer(session.store.path, session.store.spec)
        self.max_length = session.store.spec.max_tokens
        self.signature = signature(
            name,
            "pliant_session",
            (Port("text", "bytes", (1,)),),
            (Port("logits", "float32", (1, len(labels))), Port("label", "bytes", (1,))),
        )

    def read(self, tensors: Tensors) -> Request:
        text = text_of(tensors, self.max_length)
        return Request(self._tokenizer.encode(text).n_tokens, text)

    def sample(self, length: int) -> Tensors:
        return {"text": as_bytes(" ".join(["good"] * max(1, length - 2)))}

    def close(self) -> None:
        self._elastic.close()


@final
class RecurrentText:
    """A recurrent model: `text` BYTES [1], or words by number as `ids` INT64 [1, n].

    A classifier gives `logits` FP32 [1, labels] and `label` BYTES [1], any other `vector` FP32 [1, features].
    """

    degree: Literal[1, 2] = 1

    def __init__(self, name: str, model: RecurrentModel, dilation: float = 1.0) -> None:
        self._model, self.identity = model, model.source.identity
        labels = model.spec.labels
        outputs = (
            (Port("vector", "float32", (1, model.spec.features)),)
            if labels is None
            else (Port("logits", "float32", (1, len(labels))), Port("label", "bytes", (1,)))
        )
        inputs = (Port("text", "bytes", (1,)), Port("ids", "int64", (1, None)))
        ways = (frozenset({"text"}), frozenset({"ids"}))
        self.max_length = model.spec.max_tokens
        self.endpoint = Whole(name, self._answer, self.max_length, self.degree, dilation)
        self.signature = Signature(name, "pliant_recurrent", inputs, outputs, ways)

    def read(self, tensors: Tensors) -> Request:
        ids = tensors.get("ids")
        ids = self._model.source.read(text_of(tensors, self.max_length)) if ids is None else ids[0]
        return Request(len(ids), tensors={"ids": ids})

    def _answer(self, request: Request) -> Tensors:
        answer = self._model.answer(request.tensors["ids"])
        numbers = answer.logits[None]
        return (
            {"vector": numbers}
            if answer.label is None
            else {"logits": numbers, "label": as_bytes(answer.label)}
        )

    def sample(self, length: int) -> Tensors:
        return {"ids": np.arange(max(1, length))[None] % self._model.spec.vocab}

    def close(self) -> None:
        self._model.close()


@final
class ArrayModel:
    """A compiled ONNX model. Its length is the product of the first input's open dimensions, 1 without."""

    degree: Literal[1, 2] = 2

    def __init__(
        self, name: str, identity: str, session: Answering, dilation: float = 1.0, max_length: int = 4096
    ) -> None:
        self._session, self.identity = session, identity
        self.max_length = max_length
        self.endpoint = Whole(name, self._answer, max_length, self.degree, dilation)
        self.signature = signature(name, "pliant_compiled", session.inputs, session.outputs)
        first = session.inputs[0]
        self._open = [i for i, dim in enumerate(first.dims or ()) if not isinstance(dim, int)]
        self._first = first.name

    def read(self, tensors: Tensors) -> Request:
        shape = tensors[self._first].shape
        return Request(prod(shape[i] for i in self._open), tensors=tensors)

    def _answer(self, request: Request) -> Tensors:
        answers = self._session.run(request.tensors)
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


def open_served(
    source: str,
    *,
    preload: str,
    threads: int | None,
    dilation: float = 1.0,
    depths: Depths = "trained",
) -> Served:
    """The model that `source` names, whatever its kind; one that only a cluster runs is refused.

    `preload` and `depths` are a session's; `dilation` emulates a device that is so many times slower.
    Raises PliantError as `pliant.open` does.
    """
    model = resolve(source)
    match model:
        case RecurrentNetwork():
            recurrent = RecurrentModel(model.source, *shared_pool(threads))
            return RecurrentText(model.name, recurrent, dilation)
        case OnnxGraph():
            compiled = compile_onnx(model.content, threads=threads)
            return ArrayModel(model.name, model.identity, compiled, dilation)
        case CompiledProgram():
            return ArrayModel(model.name, model.identity, load(model.path, threads=threads), dilation)
        case StoreModel() | CheckpointModel():
            options = SessionOptions(
                WHOLE_S,
                parse_bytes(preload),
                n_threads=thread_count(threads),
                plan=PlanOptions(depths=depths),
                adapts=False,  # the endpoint picks targets by what it observed itself
            )
            session = open_elastic(model, options, dilation=Dilation(dilation))
            return TextClassifier(model.name, model.identity, session)
        case EncoderModel():
            raise refused(model, "pliant node without --cluster")
