"""Text input for a text session, or for an ONNX model with a tokenizer beside its file."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from pliant.api.model import CompiledProgram, ElasticModel, Model, OnnxGraph, StoreModel
from pliant.cli.shared.text_lines import InputText, TextReader, make_readable
from pliant.errors import InputError
from pliant.ir.endpoint import Request
from pliant.ir.port import Port
from pliant.ir.reply import Reply, label_scores
from pliant.models.onnx.onnx_text import OnnxText, open_onnx_text
from pliant.models.tokenizer import open_tokenizer
from pliant.run.session.session import Session
from pliant.run.session.text_session import TextSession

N_EXAMPLES = 4
"""Number of inputs on which `--compute auto` compares answers, at most."""
_LOGITS = "logits"


@dataclass(frozen=True, slots=True)
class TextModel:
    """`answer` returns the reply to a text or a pair; `labels` is None if the model is not a classifier."""

    reading: TextReader
    answer: Callable[[str, str | None], Reply[Any]]
    labels: tuple[str, ...] | None


def text_model(model: Model, session: Session[Any], *, is_traced: bool = False) -> TextModel:
    """Return the text interface; with `is_traced`, replies contain when each step ran (`Session.traced`).

    Raises InputError, naming the inputs, for a model that reads no text.
    """
    if isinstance(session, TextSession):
        answer = partial(_traced, session) if is_traced else session
        return TextModel(TextReader(session.encode, session.truncate), answer, session.labels)
    text = _onnx_text(model, session.inputs)
    return TextModel(
        TextReader(text.feeds, text.tokenizer.truncate),
        _asked(session, text, session.traced if is_traced else session.answer),
        text.labels,
    )


def text_examples(model: Model, texts: Sequence[InputText], is_truncating: bool) -> tuple[Any, ...]:
    """Return the first of `texts` as `compute="auto"` compares them, before the model is opened.

    A text encoder compares texts and pairs, an ONNX model feeds, other models nothing. Raises InputError as
    `make_readable` and `text_model` do.
    """
    if isinstance(model, ElasticModel):
        spec = model.manifest.spec if isinstance(model, StoreModel) else model.spec
        tokenizer = open_tokenizer(model.path, spec)
        reading = TextReader(tokenizer.encode, tokenizer.truncate)
        read = make_readable(texts[:N_EXAMPLES], reading, is_truncating)
        return tuple(one.text if one.pair is None else (one.text, one.pair) for one in read)
    if isinstance(model, OnnxGraph):
        from pliant.models.onnx.onnx_file import open_onnx  # onnx takes a while to import

        text = _onnx_text(model, open_onnx(model.content).inputs)
        reading = TextReader(text.feeds, text.tokenizer.truncate)
        read = make_readable(texts[:N_EXAMPLES], reading, is_truncating)
        return tuple(text.feeds(one.text, one.pair) for one in read)
    return ()


def _onnx_text(model: Model, inputs: Sequence[Port]) -> OnnxText:
    """Return how a model with these inputs reads text. Raises InputError for one that reads arrays."""
    text = None
    if isinstance(model, OnnxGraph | CompiledProgram) and model.path is not None:
        text = open_onnx_text(model.path, inputs)
    if text is None:
        named = ", ".join(f"{port.name}: {port}" for port in inputs)
        raise InputError(
            f"{model.name} is {model.kind} that reads arrays, {named}: give them as --input FILE.npz or "
            "FILE.json. An ONNX model or a compiled one reads text if input_ids is among its inputs and "
            "tokenizer.json and config.json are beside it."
        )
    return text


def best_class(reply: Reply[Any]) -> int | None:
    """Return the index of the largest logit; None if the reply has no logits [1, classes]."""
    numbers = _logits(reply)
    return None if numbers is None else int(np.argmax(numbers))


def _logits(reply: Reply[Any]) -> np.ndarray | None:
    """Return the row of the output `logits`, or of the only output."""
    given = reply.outputs.get(_LOGITS)
    if given is None and len(reply.outputs) == 1:
        (given,) = reply.outputs.values()
    is_row = given is not None and given.ndim == 2 and len(given) == 1 and given.dtype.kind == "f"
    return given[0] if given is not None and is_row else None


def _traced(session: TextSession[Any], text: str, pair: str | None) -> Reply[Any]:
    encoded = session.encode(text, pair)
    return session.traced(Request(encoded.n_tokens, tensors={"ids": encoded.ids, "types": encoded.types}))


def _asked(
    session: Session[Any], text: OnnxText, ask: Callable[[Request], Reply[Any]]
) -> Callable[[str, str | None], Reply[Any]]:
    met: set[int] = set()

    def answer(one: str, pair: str | None) -> Reply[Any]:
        start_s = time.perf_counter()
        request = session.request(text.feeds(one, pair))
        if request.length not in met:  # compiles for this length, which is not part of the measured time
            session.answer(request)
            met.add(request.length)
            start_s = time.perf_counter()
        reply = ask(request)
        return _labelled(replace(reply, seconds=time.perf_counter() - start_s), text.labels)

    return answer


def _labelled(reply: Reply[Any], labels: tuple[str, ...] | None) -> Reply[Any]:
    numbers = _logits(reply)
    if labels is None or numbers is None or len(numbers) != len(labels):
        return reply
    scores = label_scores(numbers)
    best = int(np.argmax(scores))
    return replace(reply, label=labels[best], score=scores[best], scores=scores)
