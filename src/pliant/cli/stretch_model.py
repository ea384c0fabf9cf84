"""`pliant stretch`: fine-tune a model directory into an elastic one (extra `train`)."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from pliant.api.model import CheckpointModel, unsupported_error
from pliant.api.resolve import resolve
from pliant.cli.shared.show import console, print_json
from pliant.cli.shared.verb_options import Json, parse_numbers
from pliant.elastic.heatmap import check_picture, draw_grid
from pliant.elastic.stretch_options import StretchOptions
from pliant.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class StretchArguments:
    """The options of `pliant stretch`."""

    model: Annotated[str, typer.Argument(help="A model directory of the BERT family, or a hub id.")]
    train: Annotated[Path, typer.Option(help="TSV of training examples.")]
    dev: Annotated[
        Path, typer.Option(help="TSV of examples for the reported accuracy; not used for training.")
    ]
    output: Annotated[Path, typer.Option("--output", "-o", help="Directory of the elastic model to write.")]
    teacher: Annotated[
        Path | None, typer.Option(help="Directory for the fine-tuned model before it is made elastic.")
    ] = None
    labels: Annotated[str | None, typer.Option(help="Names of the labels, such as negative,positive.")] = None
    widths: Annotated[
        str | None, typer.Option(help="Numbers of slices to train for.", show_default="quarters of the heads")
    ] = None
    tune_epochs: Annotated[
        float, typer.Option(help="Epochs (or a fraction) of fine-tuning, before the model is made elastic.")
    ] = 2.0
    distil_epochs: Annotated[
        float, typer.Option(help="Epochs of training the submodels on the fine-tuned model's outputs.")
    ] = 2.0
    final_epochs: Annotated[
        float, typer.Option(help="Epochs of fine-tuning the elastic model at the end; 0 for none.")
    ] = 0.25
    batch: Annotated[int, typer.Option(help="Number of texts in a batch of fine-tuning.")] = 32
    distil_batch: Annotated[
        int | None,
        typer.Option(help="Number of texts in a batch of distillation.", show_default="that of --batch"),
    ] = None
    rate: Annotated[float, typer.Option(help="Learning rate.")] = 1e-4
    max_tokens: Annotated[int, typer.Option(help="Texts are truncated to this length for training.")] = 128
    seed: Annotated[
        int, typer.Option(help="Seed of all random choices; equal options give equal weights.")
    ] = 0
    workers: Annotated[int, typer.Option(help="Number of threads that share a batch.")] = 2
    compact: Annotated[
        bool, typer.Option("--compact", help="Write half-precision weights and 6-bit word embeddings.")
    ] = False
    plot: Annotated[
        Path | None, typer.Option(help="Draw accuracy over layers and slices: .svg, .png or .pdf.")
    ] = None
    json: Json = False


def stretch(args: StretchArguments) -> None:
    """Fine-tune, reorder by importance, distil into submodels, fine-tune again; can be resumed."""
    model = resolve(args.model)
    if not isinstance(model, CheckpointModel):
        raise unsupported_error(model, "pliant stretch")
    options = StretchOptions(
        model=model.path,
        train=args.train,
        dev=args.dev,
        out=args.output,
        teacher=args.teacher,
        labels=None if args.labels is None else tuple(args.labels.split(",")),
        widths=parse_numbers(args.widths, "--widths"),
        tune_epochs=args.tune_epochs,
        distil_epochs=args.distil_epochs,
        final_epochs=args.final_epochs,
        batch=args.batch,
        distil_batch=args.distil_batch,
        rate=args.rate,
        max_tokens=args.max_tokens,
        seed=args.seed,
        workers=args.workers,
        is_compact=args.compact,
    )
    if args.plot is not None:
        check_picture(args.plot)
    try:
        from pliant.elastic.accuracy_counts import as_json, as_table
        from pliant.elastic.progress import show_progress
        from pliant.elastic.stretch import stretch as run_stretch
    except ImportError as error:
        raise InputError(f"stretching needs torch ({error}): pip install 'pliant[train]'.") from error
    with show_progress(Console(stderr=True)) as watch:
        report = run_stretch(options, watch)
    if args.plot is not None:
        draw_grid(report.grid, args.plot, f"{args.output.name}: accuracy on {args.dev.name}")
    if args.json:
        print_json({"out": str(report.out), "teacher_accuracy": report.teacher, "dev": as_json(report.grid)})
        return
    console().print(as_table(report.grid, "accuracy on dev, %"))
    typer.echo(f"unstretched: {100 * report.teacher:.2f} %; the model is at {report.out}")
    if args.plot is not None:
        typer.echo(f"drawn as {args.plot}")
