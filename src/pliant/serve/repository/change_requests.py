"""What an operator may ask of a repository, and how a change that fails is answered; over HTTP and gRPC."""

from collections.abc import Mapping

from pliant.errors import BudgetError, InputError, NodeError, PliantError

_IGNORED = ("unload_dependents",)
"""Parameters of Triton's clients that change nothing here: no model depends on another."""


def version_asked(parameters: Mapping[str, object]) -> str | None:
    """The version that a change is for; None for all of them.

    Raises InputError for parameters that would change the model in a way that this node does not.
    """
    if strange := sorted({*parameters} - {"version", *_IGNORED}):
        raise InputError(
            f"the parameter {', '.join(strange)[:80]} is unknown: this node loads what its options or "
            "--config name; give `version`, where a model has several."
        )
    return str(parameters["version"]) if "version" in parameters else None


def change_status(error: PliantError) -> int:
    """The HTTP status of a load or an unload that failed, from which that of gRPC follows."""
    match error:
        case NodeError():
            return error.status
        case BudgetError():  # there is no room for it beside the others
            return 409
    return 400  # a file that is no model, or a model that this device cannot run
