"""All verbs under one name, and what becomes of their errors. Knows no verb's options."""

from typing import Any

import typer
from typer.core import TyperGroup

from pliant.cli.bench import bench
from pliant.cli.compile import compile
from pliant.cli.demo import demo
from pliant.cli.eval import evaluate
from pliant.cli.inspect import inspect
from pliant.cli.pack import pack
from pliant.cli.plan import plan
from pliant.cli.profile import profile
from pliant.cli.run import run
from pliant.cli.stretch import stretch
from pliant.errors import PliantError


class _Verbs(TyperGroup):
    """Turns errors that a user can cause into a message and exit status 1, without a traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except PliantError as error:
            typer.echo(f"pliant: {error}", err=True)
            raise typer.Exit(1) from error
        except KeyboardInterrupt as error:
            raise typer.Exit(130) from error


app = typer.Typer(
    cls=_Verbs,
    help="Inference that bends to the device: name the model, the latency and the memory.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.command()(pack)
app.command()(profile)
app.command()(plan)
app.command()(run)
app.command("eval")(evaluate)
app.command()(stretch)
app.command()(inspect)
app.command()(compile)
app.command()(bench)
app.command()(demo)


@app.callback(invoke_without_command=True)
def _root(
    version: bool = typer.Option(False, "--version", help="Print pliant's version."),
) -> None:
    if version:
        import pliant

        typer.echo(f"pliant {pliant.__version__}")
        raise typer.Exit
