"""The HTTP status of an error, from which that of gRPC follows."""

from pliant.errors import BudgetError, InputError, NodeError, PliantError, RouteError


def http_status(error: PliantError) -> int:
    """500 for what is no client's fault."""
    match error:
        case NodeError():
            return error.status
        case BudgetError():  # this device has not the accuracy, or the memory for this length
            return 422
        case InputError() | RouteError():
            return 400
    return 500
