"""The command line: all verbs under one name, and the messages and exit codes of errors.

A verb's module, and what that needs, is imported when the verb is called: no verb waits for another's.
"""

import errno
from pkgutil import resolve_name
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from pliant.cli.shared.command import command_of
from pliant.errors import PliantError

VERBS = {
    "pack": ("pack:pack", "Cut a model into shards of every bitwidth and write them as a store."),
    "profile": (
        "profile:profile",
        "Measure this device for a text encoder; time the steps of others.",
    ),
    "plan": ("plan:plan", "Say what would run, and what it takes."),
    "run": ("run:run", "Answer text or arrays, within a target and a bound of memory."),
    "eval": ("eval:evaluate", "Answer every labelled example of a file, and say how well and how fast."),
    "stretch": ("stretch:stretch", "Make a model elastic in width and depth (extra `train`)."),
    "inspect": ("inspect:inspect", "Print what a model is: shape, sizes, errors, importance."),
    "compile": ("compile:compile", "Compile an ONNX model, to load or to link."),
    "bench": ("bench:bench", "Time a model; an ONNX model in turns with other runtimes."),
    "worker": ("cluster.worker:worker", "Lend this device to a cluster: join a primary and run its part."),
    "cluster key": ("cluster.cluster_key:key", "Make the key that all members of a cluster hold."),
    "cluster status": ("cluster.cluster_status:status", "Say who joined, and what they bring."),
    "cluster plan": ("cluster.cluster_plan:plan", "Choose who takes what, and predict the time."),
    "cluster run": ("cluster.cluster_run:run", "Answer with a model split over the cluster."),
    "cluster bench": (
        "cluster.cluster_bench:bench",
        "Time a split model beside its prediction and this device alone.",
    ),
    "node": ("node:node", "Answer requests over HTTP (extra `node`)."),
    "route explain": ("route_explain:explain", "Say what a node would choose now, and why."),
    "demo": ("demo:demo", "Let the model that ships with pliant answer, and show its work."),
}
"""By name, after its group where it has one: where the verb is, below pliant.cli, and what it does."""


_FULL = (errno.ENOSPC, errno.EDQUOT)
"""What a write says on a disk, or a quota, without room."""


class _Later(TyperCommand):
    """A verb of which only the summary is known until it is called."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        alone = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
        is_below = parent is not None and parent.parent is not None
        name = f"{parent.info_name} {self.name}" if is_below else str(self.name)
        alone.command(self.name)(command_of(resolve_name(f"pliant.cli.{VERBS[name][0]}")))
        return typer.main.get_command(alone).make_context(info_name, args, parent, **extra)


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
        except OSError as error:
            if error.errno not in _FULL:
                raise
            typer.echo(f"pliant: the output cannot be written: {error.strerror}. Make room for it.", err=True)
            raise typer.Exit(1) from error


app = typer.Typer(
    cls=_Verbs,
    help="Inference that bends to the device: name the model, the latency and the memory.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
_GROUPS = {
    "cluster": "Run one inference over several devices, led by this one.",
    "route": "See where a node sends its inputs.",
}
_groups = {
    _name: typer.Typer(help=_about, no_args_is_help=True, pretty_exceptions_enable=False)
    for _name, _about in _GROUPS.items()
}
for _name, (_, _summary) in VERBS.items():
    _group, _, _verb = _name.rpartition(" ")
    (_groups[_group] if _group else app).command(_verb, cls=_Later, help=_summary)(lambda: None)
for _name, _typer in _groups.items():
    app.add_typer(_typer, name=_name)


@app.callback(invoke_without_command=True)
def _root(
    version: bool = typer.Option(False, "--version", help="Print pliant's version."),
) -> None:
    if version:
        import pliant

        typer.echo(f"pliant {pliant.__version__}")
        raise typer.Exit
