"""The HTTP status of an error; the gRPC status is derived from it."""

from pliant.errors import BudgetError, InputError, NodeError, PliantError, RouteError


def http_status(error: PliantError) -> int:
    """The status of `error`; 500 for errors that the client did not cause."""
    match error:
        case NodeError():
            return error.status
        case BudgetError():  # accuracy or memory of this device does not suffice
            return 422
        case InputError() | RouteError():
            return 400
    return 500
