"""Encoders with random weights: a configuration and a seed are the model.

Every tensor is determined by the seed and its name, so a device makes only the tensors that it needs.
"""

from hashlib import sha256
from pathlib import Path
from typing import final

import msgspec
import numpy as np

from pliant.arrays import Float32, Integer
from pliant.errors import ModelError
from pliant.models.encoder.encoder_architecture import EncoderArchitecture
from pliant.models.encoder.encoder_directory import read_family, shapes_of
from pliant.models.encoder.encoder_source import Encoder

_VERSION = 1
"""Version of the random numbers; another way of generating them is another model."""
_PER_STEP = 8
"""32-bit numbers that one step of Philox's counter makes."""
_CHUNK = 1 << 15
"""Numbers made at a time, so that they stay in cache; even, as 64 bits make two."""
_RESIDUAL = ("output", "down", "widen")
_CONFIGS = Path(__file__).parents[1] / "assets" / "encoders"


def known_configs() -> tuple[str, ...]:
    """Names of the published configurations included in pliant."""
    return tuple(sorted(path.stem for path in _CONFIGS.glob("*.json")))


def random_encoder(config: str | Path, seed: int = 0) -> Encoder:
    """An encoder of a configuration, a known name or a JSON file, with seeded weights.

    Weights are uniform, of a scale at which activations stay of order 1 through all layers: unit gain for
    products, less by the root of twice the layers for those that are added to a residual; norms near 1.
    Two devices of the same configuration, seed and version of pliant's numbers hold the same model.
    Raises ModelError where there is no such configuration, or it is not supported.
    """
    path = _CONFIGS / f"{config}.json" if config in known_configs() else Path(config)
    if not path.is_file():
        raise ModelError(
            f"{config} is not a configuration file, and not one of those in pliant: "
            f"{', '.join(known_configs())}."
        )
    if not 0 <= seed < 1 << 63:
        raise ModelError(f"the seed {seed} is not in 0 to {(1 << 63) - 1}.")
    family = read_family(path)
    said = msgspec.json.encode(msgspec.json.decode(path.read_bytes()), order="sorted")
    identity = sha256(b"random %d %d " % (_VERSION, seed) + said).hexdigest()
    return Encoder(family, _RandomWeights(family, seed, identity))


@final
class _RandomWeights:
    """Tensors that are generated on each request; nothing is cached."""

    def __init__(self, family: EncoderArchitecture, seed: int, identity: str) -> None:
        self.identity = identity
        self._seed, self._n_layers = seed, family.spec.n_layers
        self._shapes = shapes_of(family)

    def view(self, name: str, /) -> np.ndarray:
        if name not in self._shapes:
            raise ModelError(f"this model has no tensor {name!r}.")
        shape = self._shapes[name]
        return self._made(name, 0, int(np.prod(shape))).reshape(shape)

    def rows(self, name: str, ids: Integer[np.ndarray, " n"], /) -> Float32[np.ndarray, "n columns"]:
        columns = self._shapes[name][1]
        return np.stack([self._made(name, int(i) * columns, columns) for i in ids])

    def release(self) -> None:
        """Nothing is kept."""

    def _made(self, name: str, start: int, n: int) -> Float32[np.ndarray, " n"]:
        """Values `start` to `start + n` of a tensor, in row-major order."""
        mean, deviation = self._scale(name)
        return uniform(f"{self._seed}/{name}", start, n, mean, deviation * 3**0.5)

    def _scale(self, name: str) -> tuple[float, float]:
        """Mean and standard deviation of a tensor's values."""
        stem, _, kind = name.rpartition(".")
        shape, part = self._shapes[name], stem.rsplit(".", 1)[-1]
        if kind == "bias":
            return 0.0, 0.02
        if len(shape) == 1:
            return 1.0, 0.1
        if kind != "weight":  # tables of words, positions, types
            return 0.0, 0.5
        gain = (2 * self._n_layers) ** -0.5 if part in _RESIDUAL else 1.0
        return 0.0, gain / float(np.prod(shape[1:])) ** 0.5


def uniform(key: str, start: int, n: int, mean: float, reach: float) -> Float32[np.ndarray, " n"]:
    """Numbers `start` to `start + n` of a stream, mean - reach to mean + reach, the same on every machine.

    Made from Philox's bits, which numpy guarantees to keep stable, unlike its distributions.
    """
    steps, skipped = divmod(start, _PER_STEP)
    bits = np.random.Philox(key=int.from_bytes(sha256(key.encode()).digest()[:16], "little"))
    if steps:
        bits.advance(steps)
    values = np.empty(skipped + n, np.float32)
    for first in range(0, values.size, _CHUNK):
        chunk = values[first : first + _CHUNK]
        raw = np.asarray(bits.random_raw(-(-chunk.size // 2)), "<u8").view("<u4")[: chunk.size]
        chunk[:] = raw >> 8
        chunk *= np.float32(reach * 2**-23)
        chunk += np.float32(mean - reach)
    return values[skipped:]
