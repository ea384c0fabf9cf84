"""Make a fine-tuned, elastic model from a BERT-family directory: tune, reorder, distil, tune again.

DynaBERT (Hou et al. 2020), the recipe of section 2, without data augmentation.
"""

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pliant.elastic.accuracy_counts import AccuracyCounts, as_json, count_correct
from pliant.elastic.callbacks import TrainingCallbacks
from pliant.elastic.export import load_weights, write_weights
from pliant.elastic.learn import StateFile, TrainingSettings, TrainingStage, learn, n_steps
from pliant.elastic.network import TensorMap
from pliant.elastic.objectives import DistillationLoss, TuningLoss
from pliant.elastic.reorder_heads import measure_importance, reorder
from pliant.elastic.stretch_options import StretchOptions
from pliant.elastic.training_batches import Sample, collate, shuffle_batches, tokenise
from pliant.errors import ModelError
from pliant.models.examples import label_names, read_examples
from pliant.models.hf.checkpoint import Checkpoint, open_checkpoint
from pliant.models.spec import Head, ModelSpec, tensor_shapes
from pliant.models.tokenizer import open_tokenizer

_LABEL_SHARE = 0.5
# Batches used to rank heads and neurons: enough for a stable order, a fraction of an epoch.
_RANKING_BATCHES = 100


@dataclass(frozen=True, slots=True)
class StretchReport:
    """The model's path and its accuracy on `dev`; `teacher` is the accuracy before stretching."""

    out: Path
    grid: AccuracyCounts
    teacher: float


def stretch(options: StretchOptions, watch: TrainingCallbacks | None = None) -> StretchReport:
    """Run all stages, or the rest of an interrupted run, and write the elastic model to `options.out`.

    Raises ModelError for an unusable model or an existing target, InputError for invalid TSVs or for the
    state of a run with other options. The accuracy grid is written to `elastic.json` beside the weights.
    """
    watch = watch or TrainingCallbacks()
    is_resumed = state_path(options).exists()
    for target in (options.out, options.teacher):
        # A run interrupted while it wrote its results has already written the complete teacher.
        if target is not None and target.exists() and not (is_resumed and target == options.teacher):
            raise ModelError(f"{target} exists already; choose another directory or remove it.")
    checkpoint = open_checkpoint(options.model)
    spec = elastic_spec(checkpoint.spec, options)
    tokenizer = open_tokenizer(options.model, spec)
    labels = spec.head.labels or ()
    train = tokenise(tokenizer, read_examples(options.train, labels), options.max_tokens)
    dev = tokenise(tokenizer, read_examples(options.dev, labels), None)
    state = StateFile(state_path(options), repr(replace(options, save_every_s=1.0)))
    start = initial_weights(checkpoint, spec, options.seed)
    done = _train(options, spec, start, train, state, watch)
    return _finish(options, spec, done, dev, state)


def elastic_spec(spec: ModelSpec, options: StretchOptions) -> ModelSpec:
    """Return the same encoder with a classifier over the mean of tokens: requested widths, every depth."""
    M = spec.n_heads
    depths = tuple(range(1, spec.n_layers + 1))
    labels = options.labels or label_names(options.train)
    widths = options.widths or tuple(sorted({max(1, round(M * share / 4)) for share in (1, 2, 3, 4)}))
    return replace(spec, head=Head("mean", None, labels), widths=widths, precision="F32", depths=depths)


def initial_weights(checkpoint: Checkpoint, spec: ModelSpec, seed: int) -> dict[str, torch.Tensor]:
    """Return the checkpoint's encoder and a new classifier initialised from `seed`."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, shape in tensor_shapes(spec):
        if not name.startswith("head."):
            weights[name] = torch.from_numpy(np.array(checkpoint.tensor(name)))
        elif name.endswith(".weight"):
            weights[name] = torch.randn(shape, generator=generator) * 0.02
        else:
            weights[name] = torch.zeros(shape)
    return weights


def state_path(options: StretchOptions) -> Path:
    """Return the path of a run's resumable state: beside its target."""
    return options.out.parent / f".{options.out.name}.state.pt"


@dataclass(frozen=True, slots=True)
class _TrainingState:
    """A run between two stages: `stage` is the next one, `learned` its saved state."""

    stage: int
    weights: TensorMap
    teacher: TensorMap
    learned: dict[str, Any] | None = None


def _train(
    options: StretchOptions,
    spec: ModelSpec,
    start: TensorMap,
    train: Sequence[Sample],
    state: StateFile,
    watch: TrainingCallbacks,
) -> _TrainingState:
    """Run all stages, from the saved state on if there is one."""
    stages = _stages(options, len(train))
    saved = state.load()
    at = _TrainingState(0, start, start) if saved is None else _TrainingState(**saved)
    while at.stage < len(stages):
        weights = _learn(options, spec, stages[at.stage], at, train, state, watch)
        if at.stage == 0:
            weights = _rank(options, spec, weights, train)
            watch.on_note("tuned; heads and neurons are in order of importance")
        at = _TrainingState(at.stage + 1, weights, weights if at.stage == 0 else at.teacher)
        _save(state, at)
    return at


def _stages(options: StretchOptions, n_samples: int) -> tuple[TrainingStage, ...]:
    first, then = options.batch, options.distil_batch or options.batch

    def stage(name: str, epochs: float, batch: int, rate: float, trains_embeddings: bool) -> TrainingStage:
        return TrainingStage(name, n_steps(n_samples, batch, epochs), batch, rate, trains_embeddings)

    return (
        stage("tune", options.tune_epochs, first, options.rate, trains_embeddings=True),
        stage("distil", options.distil_epochs, then, options.rate, trains_embeddings=False),
        stage("final", options.final_epochs, then, options.final_rate, trains_embeddings=False),
    )


def _learn(
    options: StretchOptions,
    spec: ModelSpec,
    stage: TrainingStage,
    at: _TrainingState,
    train: Sequence[Sample],
    state: StateFile,
    watch: TrainingCallbacks,
) -> TensorMap:
    objective: TuningLoss | DistillationLoss = TuningLoss(spec, options.dropout)
    if at.stage > 0:
        share = 0.0 if at.stage == 1 else _LABEL_SHARE
        objective = DistillationLoss(
            spec, at.teacher, options.temperature, options.hidden_weight, options.n_random, share
        )
    schedule = TrainingSettings(options.seed, options.workers, options.average, options.save_every_s)
    return learn(
        stage,
        at.weights,
        train,
        schedule,
        objective,
        at.learned,
        lambda learned: _save(state, replace(at, learned=learned)),
        lambda done, loss: watch.on_step(stage.name, done, stage.n_steps, loss),
    )


def _save(state: StateFile, at: _TrainingState) -> None:
    state.save(
        {
            "stage": at.stage,
            "weights": dict(at.weights),
            "teacher": dict(at.teacher),
            "learned": at.learned,
        }
    )


def _rank(
    options: StretchOptions, spec: ModelSpec, weights: TensorMap, train: Sequence[Sample]
) -> dict[str, torch.Tensor]:
    order = shuffle_batches(train, options.batch, f"{options.seed}/rank")[:_RANKING_BATCHES]
    importance = measure_importance(spec, weights, (collate([train[i] for i in batch]) for batch in order))
    return reorder(spec, weights, importance)


def _finish(
    options: StretchOptions, spec: ModelSpec, done: _TrainingState, dev: Sequence[Sample], state: StateFile
) -> StretchReport:
    """Write the models and measure them as read back."""
    whole = replace(spec, widths=(spec.n_heads,), depths=None)
    gold = count_correct(whole, done.teacher, dev, depths=(spec.n_layers,))
    if options.teacher is not None and not options.teacher.exists():
        write_weights(options.teacher, whole, done.teacher, options.model)
    partial = options.out.parent / f".{options.out.name}.unmeasured"
    shutil.rmtree(partial, ignore_errors=True)  # left by a run interrupted while it measured
    write_weights(partial, spec, done.weights, options.model, options.is_compact)
    grid = count_correct(spec, load_weights(open_checkpoint(partial)), dev)
    report = StretchReport(options.out, grid, gold.accuracy(spec.n_layers, spec.n_heads))
    contents = {"dev": as_json(grid), "teacher_accuracy": report.teacher}
    (partial / "elastic.json").write_text(json.dumps(contents, indent=2) + "\n", encoding="utf-8")
    os.replace(partial, options.out)
    state.remove()
    return report
