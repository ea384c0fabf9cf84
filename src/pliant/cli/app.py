"""The command line: all commands under one name, and the messages and exit codes of errors.

The module of a command and its dependencies are imported when the command is called, so that no command
waits for the imports of another.
"""

import errno
import logging
from itertools import pairwise
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
        "Measure this device for a text encoder, or time the steps of another model.",
    ),
    "plan": ("plan:plan", "Show the plan: what would run, with predicted time and memory."),
    "run": ("run:run", "Answer text or arrays within a latency target and a memory limit."),
    "eval": ("eval:evaluate", "Measure accuracy and latency on the labelled examples of a file."),
    "stretch": ("stretch_model:stretch", "Train a model to run with fewer layers and heads (extra `train`)."),
    "inspect": ("inspect:inspect", "Print a model's shape, sizes, errors and importance."),
    "compile": ("compile:compile", "Compile an ONNX model to a directory to load, or to C."),
    "bench": ("bench:bench", "Time a model; an ONNX model also on other runtimes."),
    "worker": (
        "cluster.join_cluster:worker",
        "Lend this device to a cluster: join a primary and run a share of its models.",
    ),
    "cluster key": ("cluster.cluster_key:key", "Make the key that all members of a cluster share."),
    "cluster status": (
        "cluster.cluster_status:status",
        "Show the members, plan and faults of a running cluster.",
    ),
    "cluster plan": ("cluster.plan_cluster:plan", "Show the share of each device and the predicted time."),
    "cluster run": ("cluster.cluster_run:run", "Answer with a model split over the cluster."),
    "cluster bench": (
        "cluster.cluster_bench:bench",
        "Compare a split model with its prediction and with this device alone.",
    ),
    "node": ("node:node", "Serve models over HTTP (extra `node`)."),
    "route explain": ("route_explain:explain", "Show what a node would choose now, and why."),
    "demo": ("demo:demo", "Run the model that ships with pliant, and show its plan and timeline."),
}
"""Commands by name, with their group if they have one: the module below pliant.cli, and a summary."""


_FULL = (errno.ENOSPC, errno.EDQUOT)
"""Error numbers of a write to a full disk or beyond a quota."""
_USAGE: Any = typer.BadParameter.__bases__[0]
"""UsageError, any mistake in the words of a command line; Typer exports only this subclass of it."""


class _LazyCommand(TyperCommand):
    """A command whose module is imported when it is called; until then only its summary is known."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        if _wants_json_lines(args):  # before the options are parsed: a mistake in them is a line too
            from pliant.serve.telemetry.log_lines import log_to

            log_to(None, "json", is_verbose=False)
        alone = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
        is_below = parent is not None and parent.parent is not None
        name = f"{parent.info_name} {self.name}" if is_below else str(self.name)
        alone.command(self.name)(command_of(resolve_name(f"pliant.cli.{VERBS[name][0]}")))
        return typer.main.get_command(alone).make_context(info_name, args, parent, **extra)


class _VerbGroup(TyperGroup):
    """Turns errors that a user can cause into a message and exit status 1, without a traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except PliantError as error:
            _say_error(str(error))
            raise typer.Exit(1) from error
        except _USAGE as error:
            from pliant.serve.telemetry.log_lines import logs_json

            if not logs_json():
                raise
            _say_error(error.format_message())
            raise typer.Exit(error.exit_code) from error
        except KeyboardInterrupt as error:
            raise typer.Exit(130) from error
        except OSError as error:
            if error.errno not in _FULL:
                raise
            _say_error(f"the output cannot be written: {error.strerror}. Free some space.")
            raise typer.Exit(1) from error


def _wants_json_lines(words: list[str]) -> bool:
    return "--log-format=json" in words or ("--log-format", "json") in pairwise(words)


def _say_error(text: str) -> None:
    from pliant.cli.shared.show import say

    say(text, logging.ERROR)


app = typer.Typer(
    cls=_VerbGroup,
    help="Inference within a latency target and a memory limit on this device.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
_GROUPS = {
    "cluster": "Run one inference over several devices; this one is the primary.",
    "route": "Show where a node sends its requests.",
}
_groups = {
    _name: typer.Typer(help=_about, no_args_is_help=True, pretty_exceptions_enable=False)
    for _name, _about in _GROUPS.items()
}
for _name, (_, _summary) in VERBS.items():
    _group, _, _verb = _name.rpartition(" ")
    (_groups[_group] if _group else app).command(_verb, cls=_LazyCommand, help=_summary)(lambda: None)
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
