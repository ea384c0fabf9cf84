"""Find the models that give embeddings, and build their inputs: text models, and text graphs from ONNX."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from pliant.errors import InputError
from pliant.ir.port import Port
from pliant.run.session.text_feeds import as_bytes
from pliant.run.session.text_session import TEXT
from pliant.serve.protocol.inference import NO_TOKENIZER
from pliant.serve.protocol.signature import Signature

VECTOR = "vector"
_IDS, _ONES, _ZEROS = ("input_ids", "ids"), ("attention_mask", "mask"), ("token_type_ids", "types")
"""Input names of text graphs: token ids, attention mask, and token types."""


@dataclass(frozen=True, slots=True)
class Embedder:
    """A model whose `output` is a vector of `width` numbers. A graph may take tokens under several names.

    `read` gives the tensors of a text; None if the model reads no texts.
    """

    name: str
    output: Port
    width: int
    read: Callable[[str], Mapping[str, np.ndarray]] | None
    fed: Mapping[str, int | None]
    """For each input the constant fed for every token; None for the token's id."""
    n_tokens: int | None = None
    """The number of tokens of a graph of a fixed shape with a mask: fewer are padded with 0 and masked."""

    def tensors(self, item: str | list[int]) -> Mapping[str, np.ndarray]:
        """Build the tensors of an input.

        Raises InputError for tokens or text that the model does not read.
        """
        try:
            if isinstance(item, str):
                if self.read is None:
                    raise InputError(f"{self.name}: {NO_TOKENIZER}")
                return self.read(item)
            if not self.fed:
                raise InputError(f"{self.name} reads no tokens; send texts.")
            n_padding = 0 if self.n_tokens is None else self.n_tokens - len(item)
            if n_padding < 0:
                raise InputError(
                    f"{self.name} reads at most {self.n_tokens} tokens, not {len(item)}; shorten the input."
                )
            tokens = np.array([item], np.int64)
        except (OverflowError, UnicodeEncodeError) as error:
            raise InputError(f"an input cannot be read: {error}.") from error
        rows = {x: tokens if as_ is None else np.full_like(tokens, as_) for x, as_ in self.fed.items()}
        return {x: np.pad(row, ((0, 0), (0, n_padding))) for x, row in rows.items()}


def embedder(signature: Signature) -> Embedder | None:
    """How a model gives embeddings; None if it gives none.

    A text model gives its `vector`. A graph that reads tokens gives its only output with one vector per text;
    per-token states do not count, because the pooling that turns them into an embedding is unknown.
    """
    read = _text_tensor if frozenset({TEXT.name}) in signature.alternatives else None
    if read is not None and not signature.is_tokenized:
        vectors = [port for port in signature.outputs if port.name == VECTOR]
        fed = {"ids": None} if frozenset({"ids"}) in signature.alternatives else {}
        return _of(signature, vectors, read, fed)
    inputs = [port for port in signature.inputs if not (signature.is_tokenized and port == TEXT)]
    found: dict[str, int | None] = {}
    for names, as_ in ((_IDS, None), (_ONES, 1), (_ZEROS, 0)):
        found |= {port.name: as_ for port in inputs if port.name in names}
    is_text = all(port.dtype == "int64" and len(port.dims or ()) == 2 for port in inputs)
    if None not in found.values() or len(found) != len(inputs) or not is_text:
        return None
    vectors = [port for port in signature.outputs if len(port.dims or ()) == 2 and port.dtype == "float32"]
    fixed = inputs[0].dims[1] if 1 in found.values() and inputs[0].dims is not None else None
    return _of(signature, vectors, read, found, fixed if isinstance(fixed, int) else None)


def _text_tensor(text: str) -> Mapping[str, np.ndarray]:
    return {"text": as_bytes(text)}


def _of(
    signature: Signature,
    vectors: list[Port],
    read: Callable[[str], Mapping[str, np.ndarray]] | None,
    fed: Mapping[str, int | None],
    n_tokens: int | None = None,
) -> Embedder | None:
    dims = vectors[0].dims if len(vectors) == 1 else None
    width = dims[-1] if dims else None
    if not isinstance(width, int):
        return None
    return Embedder(signature.name, vectors[0], width, read, fed, n_tokens)
