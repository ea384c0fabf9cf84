"""`pliant inspect`: what a store holds, and whether every byte of it is as it was written."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from pliant.cli.options import Json
from pliant.cli.pack import store_line, store_values
from pliant.cli.show import console, print_json, progress_bar
from pliant.store.files import verify as verify_files
from pliant.store.manifest import Manifest
from pliant.store.read import open_store


def inspect(
    store: Annotated[Path, typer.Argument(help="A store.")],
    verify: Annotated[
        bool, typer.Option("--verify", help="Check the SHA-256 of every file; fails naming what is damaged.")
    ] = False,
    json: Json = False,
) -> None:
    """Print a store's shape, sizes, quantization error and importance."""
    with open_store(store) as opened:
        manifest = opened.manifest
    if verify:
        n_files = len(manifest.files)
        with progress_bar() as on_progress:
            verify_files(store, lambda name, i: on_progress(f"verifying: {name}", i, n_files))
    if json:
        print_json(store_values(store, manifest) | {"verified": verify})
        return
    typer.echo(f"{store}: {store_line(manifest)}")
    typer.echo(f"made by {manifest.made_by} from {manifest.source}; identity {manifest.identity}")
    _show_layers(manifest)
    if verify:
        typer.echo(f"all {len(manifest.files)} files are as they were written")


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
