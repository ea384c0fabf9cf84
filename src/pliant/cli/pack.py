"""`pliant pack`: write a model directory as a store of shards."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from pliant.api.model import CheckpointModel, unsupported_error
from pliant.api.open_elastic import (
    Importance,
    OnProgress,
    read_accuracy,
    read_importance,
    read_measurements,
)
from pliant.api.resolve import resolve
from pliant.cli.shared.show import print_json, progress_bar
from pliant.cli.shared.verb_options import Json, parse_numbers, shipped
from pliant.elastic.evaluate.accuracy_grid import GRID_BITS, measure_grid
from pliant.elastic.evaluate.labelled_inputs import LabelledInput, pick_evenly
from pliant.elastic.importance import ablate, first_order
from pliant.errors import InputError
from pliant.ir.bitwidths import BITS, FULL_BITS, LOWEST_BITS
from pliant.models.examples import read_examples
from pliant.models.hf.checkpoint import Checkpoint, open_checkpoint
from pliant.models.tokenizer import encode_example, open_tokenizer
from pliant.quantities import format_bytes
from pliant.run.submodel.engine import Engine
from pliant.store.build import BuildProgress, build
from pliant.store.manifest import AccuracyTable, Manifest, put_accuracy, put_importance, read_manifest
from pliant.store.read import open_store

Method = Literal["ablation", "gradient"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackArguments:
    """The options of `pliant pack`."""

    source: Annotated[
        str, typer.Argument(help="A model directory, a shipped model or a hub id.", autocompletion=shipped)
    ]
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Directory of the store to write.", show_default="NAME.store"),
    ] = None
    quantizer: Annotated[
        Literal["lloyd", "equal-population"], typer.Option(help="How weights are converted to 6-bit codes.")
    ] = "lloyd"
    bits: Annotated[
        str | None,
        typer.Option(
            help="Bitwidths to include, of 1..6 and 32. The planes of the highest of 1..6 hold all below it; "
            "plans run shards with at least 2.",
            show_default="all",
        ),
    ] = None
    importance: Annotated[
        Path | None,
        typer.Option(
            help="Labelled TSV to measure the importance of each shard on, or a JSON table of importance "
            "(default: importance.json of the model directory, if there is one)."
        ),
    ] = None
    importance_examples: Annotated[
        int, typer.Option(help="Number of examples of that TSV to use, evenly spread.", min=1)
    ] = 200
    importance_method: Annotated[
        Method,
        typer.Option(
            help="Measure by a run with each shard at full fidelity (ablation), or by one "
            "gradient for all shards."
        ),
    ] = "ablation"
    accuracy: Annotated[
        Path | None,
        typer.Option(
            help="Labelled TSV that was not used for training, to measure the accuracy of every "
            "submodel on, or a JSON table of accuracy. The planner then selects the most "
            "accurate submodel instead of the largest (default: accuracy.json of the model directory, if "
            "there is one and the quantizer is lloyd)."
        ),
    ] = None
    accuracy_examples: Annotated[
        int, typer.Option(help="Number of examples of that TSV to use, evenly spread.", min=1)
    ] = 500
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing store.")] = False
    json: Json = False


def pack(args: PackArguments) -> None:
    """Cut a model into shards of every bitwidth and write them as a store."""
    model = resolve(args.source)
    if not isinstance(model, CheckpointModel):
        raise unsupported_error(model, "pliant pack")
    out = args.output or Path(f"{model.name}.store")
    checkpoint = open_checkpoint(model.path)
    chosen = parse_numbers(args.bits, "--bits") or BITS
    ordered = _importance_given(args.importance, args.importance_examples, checkpoint, chosen)
    known = _accuracy_given(args.accuracy, args.accuracy_examples, checkpoint, chosen)
    importance, accuracy = read_measurements(model.path, checkpoint.spec)
    if ordered is None:
        ordered = importance
    if known is None and args.quantizer == "lloyd":  # what was measured at other codes says nothing here
        known = accuracy
    with progress_bar() as on_progress:

        def on_build(progress: BuildProgress) -> None:
            on_progress(f"packing: {progress.what}", progress.done, progress.total)

        build(
            checkpoint,
            out,
            args.quantizer,
            chosen,
            source=args.source,
            overwrite=args.overwrite,
            on_progress=on_build,
        )
        if ordered is not None:
            put_importance(out, _importance(out, ordered, args.importance_method, on_progress))
        if known is not None:
            put_accuracy(out, _accuracy(out, known, on_progress))
    manifest = read_manifest(out)
    if args.json:
        print_json(store_values(out, manifest))
        return
    typer.echo(f"{out}: {store_line(manifest)}")


def store_values(path: Path, manifest: Manifest) -> dict[str, object]:
    """Return a store's properties for JSON."""
    return {
        "store": str(path),
        "identity": manifest.identity,
        "version": manifest.version,
        "source": manifest.source,
        "made_by": manifest.made_by,
        "quantizer": manifest.quantizer,
        "bits": manifest.bits,
        "n_bytes": manifest.n_bytes,
        "n_layers": manifest.spec.n_layers,
        "n_slices": manifest.spec.n_heads,
        "widths": manifest.spec.widths,
        "outlier_share": outlier_share(manifest),
        "error": [layer.error for layer in manifest.layers],
        "importance": manifest.importance,
        "accuracy": manifest.accuracy,
    }


def store_line(manifest: Manifest) -> str:
    """Return a store's properties in one line."""
    spec = manifest.spec
    return (
        f"{spec.family}, {spec.n_layers} layers x {spec.n_heads} slices, widths {_join(spec.widths)}, bits "
        f"{_join(manifest.bits)} ({manifest.quantizer}), {100 * outlier_share(manifest):.2f} % outliers, "
        f"{format_bytes(manifest.n_bytes)}"
    )


def outlier_share(manifest: Manifest) -> float:
    """Return the fraction of a store's shard weights that are kept exactly."""
    n_weights = sum(layer.n_weights for layer in manifest.layers)
    return sum(layer.n_outliers for layer in manifest.layers) / n_weights


@dataclass(frozen=True, slots=True)
class _LabelledInputs:
    """Examples to measure on."""

    inputs: tuple[LabelledInput, ...]


def _importance_given(
    path: Path | None, n_examples: int, checkpoint: Checkpoint, bits: tuple[int, ...]
) -> Importance | _LabelledInputs | None:
    """Check and read the argument of --importance before the work starts; raises InputError."""
    if path is None:
        return None
    if path.suffix == ".json":
        return read_importance(path, checkpoint.spec)
    if FULL_BITS not in bits or max(b for b in (0, *bits) if b < FULL_BITS) < LOWEST_BITS:
        raise InputError(
            f"importance is measured between {LOWEST_BITS} bits and {FULL_BITS}; keep both in --bits."
        )
    return _labelled(path, n_examples, checkpoint)


def _accuracy_given(
    path: Path | None, n_examples: int, checkpoint: Checkpoint, bits: tuple[int, ...]
) -> AccuracyTable | _LabelledInputs | None:
    """Check and read the argument of --accuracy before the work starts; raises InputError."""
    if path is None:
        return None
    if path.suffix == ".json":
        return read_accuracy(path, checkpoint.spec)
    if not set(bits) & set(GRID_BITS):
        raise InputError(f"accuracy is measured at {_join(GRID_BITS)} bits; keep one of these in --bits.")
    return _labelled(path, n_examples, checkpoint)


def _importance(
    store: Path, given: Importance | _LabelledInputs, method: Method, on_progress: OnProgress
) -> Importance:
    """Return the importance of each shard: the given table, or measured on the store that was just built."""
    if not isinstance(given, _LabelledInputs):
        return given

    def on_part(done: int, total: int) -> None:
        on_progress("measuring importance", done, total)

    with _engine(store) as engine:
        if method == "gradient":
            found = first_order(engine.store, given.inputs, on_examples=on_part)
        else:
            found = ablate(engine, given.inputs, on_shard=on_part).importance
    return tuple(tuple(row) for row in found.tolist())


def _accuracy(store: Path, given: AccuracyTable | _LabelledInputs, on_progress: OnProgress) -> AccuracyTable:
    """Return every submodel's accuracy: the given table, or measured on the store that was just built."""
    if not isinstance(given, _LabelledInputs):
        return given
    with _engine(store) as engine:
        return measure_grid(
            engine, given.inputs, on_cell=lambda i, n: on_progress("measuring accuracy", i, n)
        )


@contextmanager
def _engine(store: Path) -> Iterator[Engine]:
    with (
        open_store(store) as opened,
        Engine(opened) as engine,
    ):
        yield engine


def _labelled(path: Path, n_examples: int, checkpoint: Checkpoint) -> _LabelledInputs:
    """Read and tokenise the examples; raises InputError for one that the model cannot read."""
    examples = pick_evenly(read_examples(path, checkpoint.spec.head.labels or ()), n_examples)
    tokenizer = open_tokenizer(checkpoint.directory, checkpoint.spec)
    return _LabelledInputs(tuple(LabelledInput(encode_example(tokenizer, e), e.label) for e in examples))


def _join(values: tuple[int, ...]) -> str:
    return ",".join(map(str, values))
