"""Run one training stage over threads, resumably.

All randomness of a step is a function of (seed, stage, step), so a run resumed from a saved state takes the
same steps as an uninterrupted one.
"""

import os
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from pliant.elastic.network import TensorMap, TokenBatch
from pliant.elastic.training_batches import Sample, collate, shuffle_batches
from pliant.errors import InputError

WORD = "embeddings.word"
_WARM_UP = 0.06
_DECAY = 0.01
_LARGEST_NORM = 1.0


class LossFunction(Protocol):
    """The function that a stage minimises."""

    def __call__(
        self, weights: TensorMap, batch: TokenBatch, step_seed: str, worker_seed: int
    ) -> Iterator[torch.Tensor]:
        """Yield the losses of one part of a batch, one at a time so that each graph is freed before the next.

        `step_seed` is common to all parts of a step (choice of submodels), `worker_seed` is not (dropout).
        """
        ...


@dataclass(frozen=True, slots=True)
class TrainingStage:
    """One stage's name, length, batch and rate; `trains_embeddings` trains the embeddings too."""

    name: str
    n_steps: int
    batch: int
    rate: float
    trains_embeddings: bool


@dataclass(frozen=True, slots=True)
class TrainingSettings:
    """The settings shared by all stages."""

    seed: int
    workers: int
    average: float
    save_every_s: float


class StateFile:
    """The saved state of a run; every write goes to a temporary name and is renamed."""

    def __init__(self, path: Path, fingerprint: str) -> None:
        self._path = path
        self._fingerprint = fingerprint

    def load(self) -> dict[str, Any] | None:
        """Return the last saved state, or None at the start. Raises InputError if other options wrote it."""
        if not self._path.exists():
            return None
        state: dict[str, Any] = torch.load(self._path, weights_only=True)
        written_by = state.pop("fingerprint")
        if written_by != self._fingerprint:
            raise InputError(
                f"{self._path} belongs to a run with other options; remove it to start anew, or repeat the "
                f"options it was started with: {written_by}."
            )
        return state

    def save(self, state: Mapping[str, Any]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        partial = self._path.with_suffix(".partial")
        torch.save({**state, "fingerprint": self._fingerprint}, partial)
        os.replace(partial, self._path)

    def remove(self) -> None:
        self._path.unlink(missing_ok=True)


def n_steps(n_samples: int, batch: int, epochs: float) -> int:
    """Return the steps in `epochs` epochs, at least one if `epochs` is above 0."""
    return max(round(-(-n_samples // batch) * epochs), 1 if epochs > 0 else 0)


def learn(
    stage: TrainingStage,
    start: TensorMap,
    samples: Sequence[Sample],
    schedule: TrainingSettings,
    objective: LossFunction,
    saved: Mapping[str, Any] | None,
    on_save: Callable[[dict[str, Any]], None],
    on_step: Callable[[int, float], None],
) -> dict[str, torch.Tensor]:
    """Train from `start`, or from `saved` (a dict given to `on_save`); return the averaged weights.

    AdamW with a warm-up and a linear decay to 0; word embeddings, whose gradient is sparse, use SparseAdam.
    The result is an exponential moving average, which for a fixed number of steps is slightly better than the
    last weights.
    """
    at = 0 if saved is None else int(saved["step"])
    weights = {n: w.detach().clone() for n, w in (start if saved is None else saved["weights"]).items()}
    average = {n: w.detach().clone() for n, w in (start if saved is None else saved["average"]).items()}
    trained = [n for n in weights if stage.trains_embeddings or not n.startswith("embeddings.")]
    for name in trained:
        weights[name].requires_grad_()
    optimizers = _optimizers(weights, trained, stage.rate)
    if saved is not None:
        for optimizer, state in zip(optimizers, saved["optimizers"], strict=True):
            optimizer.load_state_dict(state)
    last_save_s = time.monotonic()
    with _single_threaded(), ThreadPoolExecutor(schedule.workers, initializer=_one_thread) as pool:
        for step, indices in _steps(stage, samples, schedule, at):
            parts = [indices[w :: schedule.workers] for w in range(schedule.workers)]
            seed = f"{schedule.seed}/{stage.name}/{step}"
            jobs = [
                pool.submit(
                    _gradients,
                    objective,
                    weights,
                    trained,
                    [samples[i] for i in part],
                    len(part) / len(indices),
                    seed,
                    w,
                )
                for w, part in enumerate(parts)
                if part
            ]
            loss = _apply([j.result() for j in jobs], weights, trained)
            _set_rate(optimizers, stage, step)
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            _update_average(average, weights, trained, min(schedule.average, (step + 1) / (step + 10)))
            on_step(step + 1, loss)
            if time.monotonic() - last_save_s >= schedule.save_every_s:
                on_save(
                    {
                        "step": step + 1,
                        "weights": {n: w.detach() for n, w in weights.items()},
                        "average": average,
                        "optimizers": [o.state_dict() for o in optimizers],
                    }
                )
                last_save_s = time.monotonic()
    return average


def _steps(
    stage: TrainingStage, samples: Sequence[Sample], schedule: TrainingSettings, first: int
) -> Iterator[tuple[int, list[int]]]:
    """Yield (step, indices) from step `first` on; an epoch's order depends on seed, stage and epoch."""
    per_epoch = -(-len(samples) // stage.batch)
    for epoch in range(first // per_epoch, -(-stage.n_steps // per_epoch)):
        batches = shuffle_batches(samples, stage.batch, f"{schedule.seed}/{stage.name}/{epoch}")
        for i, indices in enumerate(batches):
            step = epoch * per_epoch + i
            if first <= step < stage.n_steps:
                yield step, indices


def _gradients(
    objective: LossFunction,
    weights: TensorMap,
    trained: Sequence[str],
    samples: Sequence[Sample],
    share: float,
    step_seed: str,
    worker: int,
) -> tuple[float, list[torch.Tensor | None]]:
    """Return one part's loss, times its share of the batch, and its gradient for every trained tensor."""
    total: list[torch.Tensor | None] = [None] * len(trained)
    value = 0.0
    # Not `hash`, which Python salts differently in every process.
    worker_seed = zlib.crc32(f"{step_seed}/{worker}".encode())
    for loss in objective(weights, collate(samples), step_seed, worker_seed):
        found = torch.autograd.grad(loss * share, [weights[n] for n in trained], allow_unused=True)
        total = [_sum(t, g) for t, g in zip(total, found, strict=True)]
        value += float(loss.detach()) * share
    return value, total


def _sum(total: torch.Tensor | None, more: torch.Tensor | None) -> torch.Tensor | None:
    if total is None or more is None:
        return more if total is None else total
    return total.add_(more)


def _apply(
    results: Sequence[tuple[float, list[torch.Tensor | None]]], weights: TensorMap, trained: Sequence[str]
) -> float:
    """Set the clipped gradient of the whole batch, summed in the order of its parts; return its loss."""
    for i, name in enumerate(trained):
        parts = [g for _, gradients in results if (g := gradients[i]) is not None]
        if parts:
            weights[name].grad = sum(parts[1:], start=parts[0])
    dense = [weights[name] for name in trained if name != WORD]
    torch.nn.utils.clip_grad_norm_(dense, _LARGEST_NORM)
    return sum(value for value, _ in results)


def _optimizers(weights: TensorMap, trained: Sequence[str], rate: float) -> list[torch.optim.Optimizer]:
    dense = [weights[n] for n in trained if n != WORD]
    groups = [
        {"params": [w for w in dense if w.ndim > 1], "weight_decay": _DECAY},
        {"params": [w for w in dense if w.ndim == 1], "weight_decay": 0.0},
    ]
    optimizers: list[torch.optim.Optimizer] = [torch.optim.AdamW(groups, lr=rate, fused=True)]
    if WORD in trained:
        optimizers.append(torch.optim.SparseAdam([weights[WORD]], lr=rate))
    return optimizers


def _set_rate(optimizers: Sequence[torch.optim.Optimizer], stage: TrainingStage, step: int) -> None:
    rate = stage.rate * min((step + 1) / (_WARM_UP * stage.n_steps), 1.0 - step / stage.n_steps, 1.0)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = rate


def _update_average(average: TensorMap, weights: TensorMap, trained: Sequence[str], keep: float) -> None:
    """Move the average towards the weights; `keep` rises from 0.1, so that the start is soon forgotten."""
    with torch.no_grad():
        targets = [weights[n].detach() for n in trained]
        torch._foreach_lerp_([average[n] for n in trained], targets, 1.0 - keep)


@contextmanager
def _single_threaded() -> Iterator[None]:
    """Limit torch to one thread: pliant's own threads use the cores, and a second pool would contend."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _one_thread() -> None:
    torch.set_num_threads(1)
