"""Parameters and error statuses of load and unload requests, over HTTP and gRPC."""

from collections.abc import Mapping

from pliant.errors import BudgetError, InputError, NodeError, PliantError

_IGNORED = ("unload_dependents",)
"""Ignored parameters of Triton's clients: no model depends on another."""


def version_asked(parameters: Mapping[str, object]) -> str | None:
    """The version to load or unload; None for all versions.

    Raises InputError for parameters that would change the model in a way that this node does not support.
    """
    if strange := sorted({*parameters} - {"version", *_IGNORED}):
        raise InputError(
            f"the parameter {', '.join(strange)[:80]} is unknown: the models are configured by this node's "
            "options or --config; only `version` may be given."
        )
    return str(parameters["version"]) if "version" in parameters else None


def change_status(error: PliantError) -> int:
    """The HTTP status of a failed load or unload; the gRPC status is derived from it."""
    match error:
        case NodeError():
            return error.status
        case BudgetError():  # not enough memory beside the other models
            return 409
    return 400  # an invalid model file, or a model that this device cannot run
