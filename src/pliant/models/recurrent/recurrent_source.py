"""The weights and words of a recurrent model, from a directory or random.

A directory holds config.json (models/recurrent/recurrent_spec.py), torch's weights as safetensors, and
tokenizer.json. A random model has seeded weights and no tokenizer: word ids are hashes.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import file_digest, sha256
from itertools import islice
from pathlib import Path
from typing import final
from zlib import crc32

import msgspec
import numpy as np

from pliant.arrays import Float, Float32, Integer
from pliant.errors import InputError, ModelError
from pliant.models.encoder.encoder_random import uniform
from pliant.models.hf.safetensors_file import index_weights, read_float, read_stored
from pliant.models.recurrent.recurrent_names import match_tensors
from pliant.models.recurrent.recurrent_spec import EMBEDDING, MAX_TOKENS, RecurrentSpec, read_recurrent
from pliant.models.token_ids import check_ids
from pliant.models.tokenizer import TokenizedInput, open_tokenizer, require_content

_VERSION = 1
"""Version of the random numbers; another way of generating them is another model."""
_CONFIGS = Path(__file__).parents[1] / "assets" / "recurrent"
_WORDS = re.compile(r"\w+|[^\w\s]")


@final
@dataclass(frozen=True, slots=True, eq=False)
class RecurrentSource:
    """A model ready to be compiled: `spec`, the float32 `weights` of its layers and classifier, and its
    words.

    `table` holds the word vectors in their stored type, float16 or float32. `identity` is a hash of the
    content; `is_random` marks random weights.
    """

    name: str
    spec: RecurrentSpec
    weights: Mapping[str, np.ndarray] = field(repr=False)
    table: np.ndarray = field(repr=False)
    identity: str
    is_random: bool
    _encode: Callable[[str], TokenizedInput] = field(repr=False)
    _truncate: Callable[[str], str] = field(repr=False)
    _read: Callable[[], "_StoredModel"] = field(repr=False)

    @property
    def n_bytes(self) -> int:
        """Bytes of its weights and word vectors in memory."""
        return sum(array.nbytes for array in (*self.weights.values(), self.table))

    def without_weights(self) -> "RecurrentSource":
        """The model without its weights and word vectors; `with_weights` reads them again."""
        return replace(self, weights={}, table=self.table[:0].copy())

    def with_weights(self) -> "RecurrentSource":
        """The model with its weights and word vectors. Raises ModelError if its files cannot be read, or now
        contain another model.
        """
        stored = self._read()
        if stored.identity != self.identity:
            raise ModelError(
                f"the files of {self.name} hold another model than when it was opened: open it again."
            )
        return replace(self, weights=stored.weights, table=stored.table)

    def encode(self, text: str) -> TokenizedInput:
        """The word ids of a text, without types. Raises InputError for no words or too many."""
        return self._encode(text)

    def truncate(self, text: str) -> str:
        """The text, cut to the length that the model accepts."""
        require_content(text, "the text")
        return self._truncate(text)

    def look_up(self, ids: Integer[np.ndarray, " tokens"]) -> Float32[np.ndarray, "tokens inputs"]:
        """The word vectors. Raises InputError as `check` does."""
        self.check(ids)
        vectors: np.ndarray = self.vectors(ids).astype(np.float32)
        return vectors

    def check(self, ids: Integer[np.ndarray, " tokens"]) -> None:
        """Raise InputError for no words, too many, or an unknown word id."""
        if ids.ndim != 1 or ids.dtype.kind not in "iu":
            raise InputError(f"words are {ids.dtype}{list(ids.shape)}; give whole numbers in one row.")
        if not 1 <= len(ids) <= MAX_TOKENS:
            raise InputError(f"{len(ids)} words cannot be read; give 1 to {MAX_TOKENS}.")
        check_ids(ids, self.spec.vocab, "word")

    def vectors(self, ids: Integer[np.ndarray, " tokens"]) -> Float[np.ndarray, "tokens inputs"]:
        """As `look_up`, in the stored type and for checked ids."""
        found: np.ndarray = self.table.take(ids, 0)
        return found


def known_recurrent() -> tuple[str, ...]:
    """Names of the configurations included in pliant, for `random:NAME`."""
    return tuple(sorted(path.stem for path in _CONFIGS.glob("*.json")))


def open_recurrent_source(directory: Path) -> RecurrentSource:
    """The model of a directory. Raises ModelError naming the file and what is wrong with it."""
    spec = read_recurrent(directory / "config.json")
    tokenizer = open_tokenizer(directory, spec)
    stored = _read_stored(directory, spec)
    return RecurrentSource(
        name=directory.name,
        spec=spec,
        weights=stored.weights,
        table=stored.table,
        identity=stored.identity,
        is_random=False,
        _encode=tokenizer.encode,
        _truncate=lambda text: tokenizer.truncate(text)[0],
        _read=partial(_read_stored, directory, spec),
    )


@dataclass(frozen=True, slots=True)
class _StoredModel:
    """The weights and word vectors (in their stored type) of a model, and the hash of its files."""

    weights: Mapping[str, np.ndarray]
    table: np.ndarray
    identity: str


def _read_stored(directory: Path, spec: RecurrentSpec) -> _StoredModel:
    try:
        stored = match_tensors(spec, index_weights(directory))
    except ModelError as e:
        raise ModelError(e if str(directory) in str(e) else f"{directory} cannot be used: {e}") from e
    weights = {name: read_float(tensor) for name, tensor in stored.items() if name != EMBEDDING}
    files = sorted({tensor.file for tensor in stored.values()})
    digest = sha256()
    for path in (directory / "config.json", directory / "tokenizer.json", *files):
        try:
            with path.open("rb") as file:
                digest.update(file_digest(file, "sha256").digest())
        except OSError as e:
            raise ModelError(f"{path} cannot be read: {e.strerror}.") from e
    return _StoredModel(weights, read_stored(stored[EMBEDDING]), digest.hexdigest())


def random_recurrent(config: str | Path, seed: int = 0) -> RecurrentSource:
    """A model of a configuration, a known name or a JSON file, with seeded weights.

    Weights are uniform in +-1/sqrt(units), as torch initialises them; word vectors have unit variance. Raises
    ModelError for an unknown or unsupported configuration.
    """
    path = _CONFIGS / f"{config}.json" if config in known_recurrent() else Path(config)
    if not path.is_file():
        raise ModelError(
            f"{config} is not a configuration file, and not one of those in pliant: "
            f"{', '.join(known_recurrent())}."
        )
    spec = read_recurrent(path)
    said = msgspec.json.encode(msgspec.json.decode(path.read_bytes()), order="sorted")

    def made(name: str, reach: float) -> np.ndarray:
        shape = spec.tensors()[name]
        return uniform(f"{seed}/{name}", 0, int(np.prod(shape)), 0.0, reach).reshape(shape)

    def encode(text: str) -> TokenizedInput:
        require_content(text, "the text")
        words = _WORDS.findall(text.lower())
        if not words:
            raise InputError("the text has no word; give at least one.")
        if len(words) > MAX_TOKENS:
            raise InputError(f"the text has {len(words)} words, but the model reads at most {MAX_TOKENS}.")
        ids = np.array([crc32(word.encode()) % spec.vocab for word in words], np.int32)
        return TokenizedInput(ids, np.zeros_like(ids))

    def truncate(text: str) -> str:
        last = next(islice(_WORDS.finditer(text), MAX_TOKENS - 1, None), None)
        return text if last is None else text[: last.end()]

    def stored() -> _StoredModel:
        weights = {name: made(name, spec.hidden**-0.5) for name in spec.tensors() if name != EMBEDDING}
        identity = sha256(b"recurrent %d %d " % (_VERSION, seed) + said).hexdigest()
        return _StoredModel(weights, made(EMBEDDING, 3**0.5), identity)

    first = stored()
    return RecurrentSource(
        name=f"random:{config}:{seed}",
        spec=spec,
        weights=first.weights,
        table=first.table,
        identity=first.identity,
        is_random=True,
        _read=stored,
        _encode=encode,
        _truncate=truncate,
    )
