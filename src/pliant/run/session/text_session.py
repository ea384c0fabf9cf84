"""The base class of text sessions: texts or ids in, logits and a label or a vector out."""

import time
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, overload

import numpy as np

from pliant.errors import InputError
from pliant.ir.dilation import Dilation
from pliant.ir.endpoint import Request
from pliant.ir.port import Port
from pliant.ir.reply import Reply, label_scores
from pliant.models.tokenizer import TokenizedInput
from pliant.quantities import parse_seconds
from pliant.run.session.feeds import FeedsLike, convert_feed, require_named
from pliant.run.session.ports import Feeds, copy_into
from pliant.run.session.session import Session
from pliant.run.session.text_feeds import as_bytes, text_of

D = TypeVar("D", covariant=True)
TEXT, IDS = Port("text", "bytes", (1,)), Port("ids", "int64", (1, None))
TextPair = tuple[str, str]
Texts = list[str] | list[TextPair] | list[str | TextPair]


@dataclass(frozen=True, slots=True)
class TextInput:
    """An input as tokens.

    `start_s` is when the request arrived and `ready_s` when its tokens were ready, both by
    `time.perf_counter`; `cpu_s` is the calling thread's CPU time for tokenising.
    """

    encoded: TokenizedInput
    start_s: float
    ready_s: float
    cpu_s: float


class TextSession(Session[D]):
    """A session that reads `text` BYTES [1], or token ids as `ids` INT64 [1, n].

    A classifier returns `logits` FP32 [1, labels] and `label` BYTES [1], another model `vector` FP32 [1,
    features].
    """

    def __init__(
        self,
        name: str,
        identity: str,
        *,
        labels: tuple[str, ...] | None,
        features: int,
        max_length: int,
        vocab: int,
        dilation: Dilation = Dilation(),  # noqa: B008 - frozen
    ) -> None:
        super().__init__(dilation)
        self.name, self.identity, self.labels = name, identity, labels
        self.max_length, self.vocab = max_length, vocab
        self.inputs = (TEXT, IDS)
        self.outputs = (
            (Port("vector", "float32", (1, features)),)
            if labels is None
            else (Port("logits", "float32", (1, len(labels))), Port("label", "bytes", (1,)))
        )

    @property
    def ways(self) -> tuple[frozenset[str], ...]:
        """The inputs are `text` or `ids`."""
        return tuple(frozenset({port.name}) for port in self.inputs)

    @overload
    def __call__(
        self, text: Texts, pair: None = None, *, latency: str | float | None = None
    ) -> list[Reply[D]]: ...

    @overload
    def __call__(
        self, text: str, pair: str | None = None, *, latency: str | float | None = None
    ) -> Reply[D]: ...

    def __call__(
        self,
        text: str | Texts,
        pair: str | None = None,
        *,
        latency: str | float | None = None,
    ) -> Reply[D] | list[Reply[D]]:
        """Answer a text, a pair of texts, or a list of either together.

        `latency` is a target for this call alone, if the session supports targets. The replies to a list are
        in its order. Raises InputError naming an item that cannot be read, before any item is answered.
        """
        target_s = None if latency is None else parse_seconds(latency)
        if not isinstance(text, list):
            return self._answers((self._input_of_text(text, pair),), target_s)[0]
        if pair is not None:
            raise InputError("`pair` belongs to one text: give a list of (text, pair) instead.")
        return self._answers([self._item(i, item) for i, item in enumerate(text)], target_s)

    @abstractmethod
    def encode(self, text: str, pair: str | None = None) -> TokenizedInput:
        """The tokens of a text or a pair. Raises InputError for one that the model cannot read."""

    @abstractmethod
    def truncate(self, text: str, pair: str | None = None) -> tuple[str, str | None]:
        """A text or a pair, cut to the length that the model accepts; unchanged if it fits."""

    def request(self, feeds: FeedsLike) -> Request:
        """The request of `text` or `ids`; tokens are looked up now. Raises InputError."""
        encoded = self._encoded(feeds)
        return Request(encoded.n_tokens, tensors={"ids": encoded.ids, "types": encoded.types})

    def sample(self, length: int) -> dict[str, np.ndarray]:
        """`ids` of `length` tokens."""
        return {"ids": np.arange(max(1, length), dtype=np.int64)[None] % self.vocab}

    @abstractmethod
    def _answers(self, inputs: Sequence[TextInput], target_s: float | None) -> list[Reply[D]]:
        """The replies to some inputs, in their order; `target_s` overrides the session's target."""

    def outputs_of(self, numbers: np.ndarray) -> dict[str, Any]:
        """The fields of a Reply that are computed from a model's output, float32 [labels] or [features]."""
        if self.labels is None:
            return {"outputs": self._named(numbers)}
        scores = label_scores(numbers)
        best = int(numbers.argmax())
        return {
            "outputs": self._named(numbers),
            "label": self.labels[best],
            "score": scores[best],
            "scores": scores,
        }

    def _named(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
        """The outputs by name."""
        if self.labels is None:
            return {"vector": numbers[None]}
        return {"logits": numbers[None], "label": as_bytes(self.labels[numbers.argmax()])}

    def _run(self, feeds: FeedsLike, out: Feeds | None) -> dict[str, np.ndarray]:
        outputs = self._outputs(feeds)
        if not out:
            return outputs
        return outputs | {name: copy_into(out, name, outputs[name]) for name in out}

    def _outputs(self, feeds: FeedsLike) -> dict[str, np.ndarray]:
        """Outputs by name, for unchecked feeds."""
        return dict(self._answers((self._input_of_feeds(feeds),), None)[0].outputs)

    def _reply(self, request: Request) -> Reply[D]:
        return self._answers((self._input_of_request(request),), None)[0]

    def _input_of_text(self, text: str, pair: str | None) -> TextInput:
        start_s, cpu_s = time.perf_counter(), time.thread_time()
        encoded = self.encode(text, pair)
        return TextInput(encoded, start_s, time.perf_counter(), time.thread_time() - cpu_s)

    def _input_of_feeds(self, feeds: FeedsLike) -> TextInput:
        start_s, cpu_s = time.perf_counter(), time.thread_time()
        encoded = self._encoded(feeds)
        return TextInput(encoded, start_s, time.perf_counter(), time.thread_time() - cpu_s)

    def _input_of_ids(self, encoded: TokenizedInput) -> TextInput:
        now_s = time.perf_counter()
        return TextInput(encoded, now_s, now_s, 0.0)

    def _input_of_request(self, request: Request) -> TextInput:
        if request.text is not None:
            return self._input_of_text(request.text, None)
        return self._input_of_ids(TokenizedInput(request.tensors["ids"], request.tensors["types"]))

    def _item(self, i: int, item: str | TextPair) -> TextInput:
        text, pair = item if isinstance(item, tuple) and len(item) == 2 else (item, None)
        try:
            return self._input_of_text(text, pair)
        except InputError as error:
            raise InputError(f"text {i} of the list: {error}") from error

    def _encoded(self, feeds: FeedsLike) -> TokenizedInput:
        """The tokens of `feeds`, which has the inputs of one of `ways`. Raises InputError."""
        require_named(feeds)
        if feeds.keys() == {"text"}:
            return self.encode(text_of(feeds, self.max_length))
        if feeds.keys() != {"ids"}:
            raise InputError(f"{self.name} takes text or ids; the feeds are {', '.join(feeds) or 'none'}.")
        ids = convert_feed(IDS, feeds["ids"])
        if ids.ndim != 2 or len(ids) != 1 or not 1 <= ids.shape[1] <= self.max_length:
            raise InputError(f"`ids` is {list(ids.shape)}; give [1, n] with n from 1 to {self.max_length}.")
        row = ids[0]
        largest = row.item(row.view(np.uint64).argmax())  # as unsigned, negative ids are the largest
        if not 0 <= largest < self.vocab:
            raise InputError(f"`ids` holds {ids.min()} to {ids.max()}; they are 0 to {self.vocab - 1}.")
        return TokenizedInput(row.astype(np.int32), np.zeros(len(row), np.int32))
