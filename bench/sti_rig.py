"""Shared parts of bench/sti*.py: stores of both quantizers, accuracy of any plan, and devices as values."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from pliant.elastic.evaluate.labelled_inputs import LabelledInput
from pliant.ir.cost import CostTable, cost_table, dilate
from pliant.ir.device import DeviceProfile
from pliant.ir.dilation import Dilation
from pliant.models.examples import Example, read_examples
from pliant.models.hf.checkpoint import open_checkpoint
from pliant.models.tokenizer import Tokenizer, open_tokenizer
from pliant.plan.plan import BitGrid, Plan
from pliant.plan.submodel.accuracy import AccuracyGrid
from pliant.run.submodel.engine import Engine
from pliant.store.build import build
from pliant.store.read import Store, open_store

Quantizer = Literal["lloyd", "equal-population"]


@dataclass(frozen=True, slots=True)
class Preset:
    """A kind of device, relative to its own full-model compute: targets, and IO of a full-fidelity layer."""

    name: str
    is_flat: bool
    io_ratio: float
    targets: tuple[float, ...]


PRESETS = (
    Preset("odroid-like", False, 3.6, (0.08, 0.11, 0.21)),
    Preset("jetson-like", True, 8.3, (0.22, 0.30, 0.59)),
)


@dataclass(frozen=True, slots=True)
class Device:
    """A preset's emulation on this machine: its profile, and seconds of full-model compute."""

    preset: Preset
    profile: DeviceProfile
    full_s: float
    length: int

    def costs(self, *, is_median: bool = False, io_slower: float = 1.0) -> CostTable:
        costs = cost_table(self.profile, self.length, "median" if is_median else "p95")
        return dilate(costs, Dilation(io=io_slower))


class Rig:
    """One model of one task, packed with both quantizers, with cached answers of any submodel at any bits."""

    def __init__(
        self,
        model: Path,
        dev: Path,
        scratch: Path,
        cache: Path,
        n_threads: int,
        length: int,
        n_dev: int | None,
    ) -> None:
        checkpoint = open_checkpoint(model)
        self.cache, self.n_threads, self.length = cache, n_threads, length
        self.stores: dict[Quantizer, Store] = {}
        self.engines: dict[Quantizer, Engine] = {}
        for quantizer in ("lloyd", "equal-population"):
            path = build(checkpoint, scratch / quantizer, quantizer=quantizer)
            self.stores[quantizer] = open_store(path)
            self.engines[quantizer] = Engine(
                self.stores[quantizer], n_threads=n_threads, cache=cache, tokens=length
            )
        self.spec = checkpoint.spec
        self.tokenizer = open_tokenizer(model, self.spec)
        examples = picked(read_examples(dev, self.spec.head.labels or ()), n_dev)
        self.dev = labelled(self.tokenizer, examples, self.spec.max_tokens)
        self._words = tuple(w for e in examples for w in e.text.split())
        self.labels = np.array([e.label for e in self.dev])
        self.grid: AccuracyGrid | None = None  # set once measured
        self._known: dict[object, np.ndarray] = {}

    @property
    def store(self) -> Store:
        return self.stores["lloyd"]

    def predicted(
        self, layers: tuple[int, ...], width: int, bits: BitGrid, quantizer: Quantizer = "lloyd"
    ) -> np.ndarray:
        """The predicted label of each dev example with all weights in memory: int64 [n]."""
        key = (quantizer, layers, width, bits)
        if key not in self._known:
            self._known[key] = self._answers(layers, width, bits, quantizer, self.dev)
        return self._known[key]

    def predicted_as_run(self, plan: Plan, grids: Sequence[BitGrid]) -> np.ndarray:
        """The labels at the bits of real runs: example i has the bits of run i modulo the number of runs."""
        found = np.zeros(len(self.dev), np.int64)
        for grid in dict.fromkeys(grids):
            at = [i for i in range(len(self.dev)) if grids[i % len(grids)] == grid]
            if len(at) > len(self.dev) // 2 or ("lloyd", plan.layers, plan.width, grid) in self._known:
                found[at] = self.predicted(plan.layers, plan.width, grid)[at]
            else:
                some = [self.dev[i] for i in at]
                found[at] = self._answers(plan.layers, plan.width, grid, "lloyd", some)
        return found

    @property
    def majority(self) -> str:
        """The accuracy of always predicting the dev set's most frequent label, as text for a table's
        title.
        """
        return majority_words(self.labels)

    def texts(self, n: int, seed: int = 0) -> list[str]:
        """`n` texts of exactly `length` tokens, made of the dev set's own words."""
        rng = np.random.default_rng(seed)
        return [_exactly(self.tokenizer, self._words, self.length, rng) for _ in range(n)]

    def _answers(
        self,
        layers: tuple[int, ...],
        width: int,
        bits: BitGrid,
        quantizer: Quantizer,
        some: Sequence[LabelledInput],
    ) -> np.ndarray:
        engine = self.engines[quantizer]
        held = np.zeros((self.spec.n_layers, self.spec.n_heads), np.int64)
        held[list(layers), :width] = bits
        engine.hold(held)
        return np.array([int(np.argmax(engine.answer(e.encoded, layers, width))) for e in some])

    def close(self) -> None:
        for engine in self.engines.values():
            engine.close()
        for store in self.stores.values():
            store.close()


def majority(labels: np.ndarray) -> int:
    """The most frequent of `labels`, int [n]."""
    return int(np.argmax(np.bincount(labels)))


def majority_words(labels: np.ndarray) -> str:
    """The accuracy of always predicting the most frequent label, as text."""
    return f"majority class: {100 * np.mean(labels == majority(labels)):.1f} %"


def picked(examples: Sequence[Example], limit: int | None) -> Sequence[Example]:
    """All examples, or `limit` of them spread evenly."""
    if limit is None or limit >= len(examples):
        return examples
    return [examples[int(i)] for i in np.linspace(0, len(examples) - 1, limit)]


def labelled(tokenizer: Tokenizer, examples: Sequence[Example], max_tokens: int) -> tuple[LabelledInput, ...]:
    """Tokenised examples; pairs that might exceed the model's limit are truncated."""
    found = []
    for e in examples:
        text, pair = e.text, e.pair
        if len(text.split()) + len((pair or "").split()) > max_tokens // 2 and pair is not None:
            pair = " ".join(pair.split()[: max_tokens // 4])
            text = " ".join(text.split()[: max_tokens // 4])
        found.append(LabelledInput(tokenizer.encode(text, pair), e.label))
    return tuple(found)


def _exactly(tokenizer: Tokenizer, words: Sequence[str], length: int, rng: np.random.Generator) -> str:
    at = int(rng.integers(0, len(words)))
    text: list[str] = []
    deadline = time.perf_counter() + 5
    while time.perf_counter() < deadline:
        at = (at + 1) % len(words)
        n = tokenizer.encode(" ".join([*text, words[at]])).n_tokens
        if n <= length:
            text.append(words[at])
        if n == length:
            break
    return " ".join(text)
