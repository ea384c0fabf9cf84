"""`pliant inspect`: describe a model of any kind, and verify a store or a program."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, assert_never

import typer
from rich.table import Table

from pliant.api.compile_onnx import open_graph
from pliant.api.model import (
    CheckpointModel,
    CompiledProgram,
    ElasticModel,
    EncoderModel,
    OnnxGraph,
    RandomWeights,
    RecurrentNetwork,
    StoreModel,
)
from pliant.api.open_elastic import open_packed_store
from pliant.api.resolve import resolve
from pliant.cli.pack import store_line, store_values
from pliant.cli.shared.refuse_options import refuse_options
from pliant.cli.shared.show import console, print_json, progress_bar
from pliant.cli.shared.text_file import read_text_file
from pliant.cli.shared.verb_options import LENGTH, Json, shipped
from pliant.compiler.aot.compiled_directory import load_directory
from pliant.errors import InputError
from pliant.ir.check.executable_check import arena_faults
from pliant.ir.text.executable_text import executable_text
from pliant.models.onnx.onnx_file import open_onnx
from pliant.quantities import format_bytes
from pliant.settings import cache_folder
from pliant.store.manifest import Manifest
from pliant.store.store_files import verify as verify_files

_MOST_SHOWN = 10
"""Number of list items that are printed (an image classifier has a thousand labels); --json prints all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectArguments:
    """The options of `pliant inspect`."""

    source: Annotated[
        str,
        typer.Argument(
            help="A model that ships with pliant (sst2), a model directory, a store, a hub id, an "
            "ONNX file, a directory written by pliant compile, or random:CONFIG[:SEED]; or a "
            "file *.txt with the output of pliant plan --explain or pliant inspect --executable.",
            autocompletion=shipped,
        ),
    ]
    verify: Annotated[
        bool,
        typer.Option(
            "--verify", help="Verify the SHA-256 of every file of a store; fails and names the damaged files."
        ),
    ] = False
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Verify a program, an executable, or the arena of a compiled directory; fails and "
            "names each error.",
        ),
    ] = False
    executable: Annotated[
        bool,
        typer.Option(
            "--executable",
            help="Compile an ONNX model and print its executable: kernel calls, their arguments, and "
            "the location of every tensor.",
        ),
    ] = False
    length: Annotated[
        int, typer.Option(help="Size of the last open dimension of each input, for --executable.")
    ] = LENGTH
    json: Json = False


def inspect(args: InspectArguments) -> None:
    """Print the properties of a model or a program. A text model is packed first, if it is not a store; then
    sizes, errors and importance are printed."""
    path = Path(args.source)
    if path.suffix == ".txt" and path.is_file():
        _inspect_text(path, args)
        return
    named = resolve(args.source)
    if not isinstance(named, CompiledProgram):
        refuse_options(
            named,
            args,
            ("check",),
            "it verifies a file *.txt or a compiled directory",
        )
    if not isinstance(named, ElasticModel):
        refuse_options(named, args, ("verify",), "it verifies the files of a store; see pliant pack")
    if not isinstance(named, OnnxGraph):
        refuse_options(named, args, ("executable", "length"), "it is for ONNX models")
    elif args.executable:
        _print_executable(named, args)
        return
    match named:
        case StoreModel() | CheckpointModel() as model:
            _inspect_store(model, is_verifying=args.verify, is_json=args.json)
            return
        case RecurrentNetwork() as model:
            values = _recurrent_values(args.source, model)
        case EncoderModel() as model:
            values = _encoder_values(args.source, model)
        case OnnxGraph() as model:
            values = _onnx_values(args.source, model)
        case CompiledProgram(path=path):
            values = _compiled_values(path, is_checking=args.check)
        case _ as other:
            assert_never(other)
    if args.json:
        print_json(values)
        return
    for name, value in values.items():
        typer.echo(f"{name.removesuffix('_bytes')}: {_print_value(name, value)}")


def _inspect_text(path: Path, args: InspectArguments) -> None:
    if args.verify or args.executable:
        name = "verify" if args.verify else "executable"
        raise InputError(f"{path} is a text file, which has no option --{name}: give --check.")
    found = read_text_file(path)
    if args.json:
        print_json({found.kind: found.value, "faults": found.faults})
    else:
        typer.echo(found.text, nl=False)
    if args.check and found.faults:
        raise InputError(f"{path} is not a valid {found.kind}:\n" + "\n".join(found.faults))


def _print_executable(model: OnnxGraph, args: InspectArguments) -> None:
    with open_graph(model) as session:
        executable = session.executable(session.sample(args.length))
    if args.json:
        print_json({"executable": executable, "faults": ()})
    else:
        typer.echo(executable_text(executable), nl=False)


def _recurrent_values(source: str, network: RecurrentNetwork) -> dict[str, Any]:
    model = network.source
    spec = model.spec
    return {
        "model": source,
        "kind": f"recurrent, {spec.cell}",
        "identity": model.identity,
        "has_random_weights": model.is_random,
        "n_layers": spec.n_layers,
        "hidden": spec.hidden,
        "vocab": spec.vocab,
        "max_tokens": spec.max_tokens,
        "labels": spec.labels,
        "weights_bytes": sum(a.nbytes for a in (*model.weights.values(), model.table)),
    }


def _encoder_values(source: str, model: EncoderModel) -> dict[str, Any]:
    spec = model.family.spec
    return {
        "model": source,
        "kind": f"encoder, {spec.family}",
        "identity": model.identity,
        "has_random_weights": isinstance(model.weights, RandomWeights),
        "n_layers": spec.n_layers,
        "n_heads": spec.n_heads,
        "hidden": spec.hidden,
        "max_rows": spec.max_rows,
        "labels": model.labels,
    }


def _onnx_values(source: str, graph: OnnxGraph) -> dict[str, Any]:
    model = open_onnx(graph.content)
    operators = Counter(node.op_type for node in model.proto.graph.node)
    return {
        "model": source,
        "kind": "ONNX",
        "opsets": {domain or "ai.onnx": version for domain, version in model.opsets.items()},
        "inputs": {port.name: str(port) for port in model.inputs},
        "outputs": {port.name: str(port) for port in model.outputs},
        "operators": dict(operators.most_common()),
        "weights_bytes": sum(array.nbytes for array in model.constants.values()),
    }


def _compiled_values(directory: Path, *, is_checking: bool) -> dict[str, Any]:
    saved = load_directory(directory)
    program = saved.program
    if is_checking and program.rows and program.arena_bytes and not program.tensors:
        raise InputError(f"{directory} has no description of its arena; compile the model again.")
    checked = arena_faults(program.tensors, program.arena_bytes) if is_checking else ()
    wrong = [fault.reason for fault in checked]
    if wrong:
        raise InputError(f"{directory} is not a valid program:\n" + "\n".join(wrong))
    return {
        "model": str(directory),
        "kind": "compiled",
        "inputs": {name: str(type_) for name, type_ in program.inputs.items()},
        "outputs": {name: str(type_) for name, type_ in program.outputs.items()},
        "operators": dict(Counter(row.op for row in program.rows).most_common()),
        "n_threads": program.n_threads,
        "weights_bytes": sum(array.nbytes for array in saved.weights.values()),
        "arena_bytes": program.arena_bytes,
    }


def _print_value(name: str, value: Any) -> str:
    if name.endswith("_bytes"):
        return format_bytes(value)
    if isinstance(value, dict):
        return ", ".join(f"{key} {item}" for key, item in value.items())
    if not isinstance(value, list | tuple):
        return str(value)
    more = f", ... ({len(value)})" if len(value) > _MOST_SHOWN else ""
    return ", ".join(map(str, value[:_MOST_SHOWN])) + more


def _inspect_store(model: ElasticModel, *, is_verifying: bool, is_json: bool) -> None:
    with progress_bar() as on_progress:
        with open_packed_store(model, cache_folder(), on_progress) as opened:
            store, manifest = opened.path, opened.manifest
        if is_verifying:
            n_files = len(manifest.files)
            verify_files(store, lambda name, i: on_progress(f"verifying: {name}", i, n_files))
    if is_json:
        print_json(store_values(store, manifest) | {"verified": is_verifying})
        return
    typer.echo(f"{store}: {store_line(manifest)}")
    typer.echo(f"made by {manifest.made_by} from {manifest.source}; identity {manifest.identity}")
    _show_layers(manifest)
    if is_verifying:
        typer.echo(f"all {len(manifest.files)} files are unchanged")


def _show_layers(manifest: Manifest) -> None:
    table = Table(title="layers: error of each bitwidth, relative to the weights' variance")
    n_errors = len(manifest.layers[0].error)
    for name in ("layer", "weights", "outliers", *(f"{k} bits" for k in range(1, n_errors + 1))):
        table.add_column(name, justify="right")
    for i, layer in enumerate(manifest.layers):
        share = f"{100 * layer.n_outliers / layer.n_weights:.2f} %"
        table.add_row(str(i), str(layer.n_weights), share, *(f"{e:.5f}" for e in layer.error))
    console().print(table)
    if manifest.importance is None:
        return
    grid = Table(title="importance of each shard")
    for name in ("layer", *map(str, range(manifest.spec.n_heads))):
        grid.add_column(name, justify="right")
    for i, row in enumerate(manifest.importance):
        grid.add_row(str(i), *(f"{x:.4g}" for x in row))
    console().print(grid)
