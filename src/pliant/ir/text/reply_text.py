"""A reply as text: the answer, a line for a prompt or a log, a table for a notebook."""

from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from pliant.quantities import format_seconds

if TYPE_CHECKING:  # avoids a cycle: Reply prints itself with this module
    from pliant.ir.reply import Reply

_MOST_VALUES, _MOST_OUTPUTS = 4, 4
"""Maximum numbers of values of an array, and of arrays, in a line."""


def answer_text(reply: "Reply[Any]") -> str:
    """Return label and probability, or the start of a vector, or of each output."""
    if reply.label is not None:
        return reply.label if reply.score is None else f"{reply.label} ({reply.score:.3f})"
    if reply.vector is not None:
        return f"vector of {len(reply.vector)}: {_values(reply.vector)}"
    shown = [f"{name} {_output(y)}" for name, y in list(reply.outputs.items())[:_MOST_OUTPUTS]]
    n_more = len(reply.outputs) - len(shown)
    return "; ".join(shown) + (f"; {n_more} more" if n_more else "")


def time_text(reply: "Reply[Any]") -> str:
    """Return `3.1 ms of 20 ms (met)`, or only the time without a target."""
    took = format_seconds(reply.seconds)
    if reply.target_s is None:
        return took
    return f"{took} of {format_seconds(reply.target_s)} ({'met' if reply.met else 'MISSED'})"


def accuracy_text(reply: "Reply[Any]") -> str:
    """Return the expected accuracy of such answers."""
    if reply.accuracy is None:
        return "accuracy not measured"
    return f"accuracy {100 * reply.accuracy:.1f} % expected"


def reply_line(reply: "Reply[Any]") -> str:
    """Return answer, time and accuracy in one line."""
    return ", ".join((answer_text(reply), time_text(reply), accuracy_text(reply)))


def reply_html(reply: "Reply[Any]") -> str:
    """Return a table with the same content, and the endpoint."""
    rows = [
        ("answer", answer_text(reply)),
        ("time", time_text(reply)),
        ("accuracy", accuracy_text(reply).removeprefix("accuracy ")),
        ("answered by", reply.endpoint),
    ]
    cells = "".join(f"<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>" for name, text in rows)
    return f"<table>{cells}</table>"


def _output(value: "np.ndarray[Any, Any] | list[Any] | None") -> str:
    if value is None:
        return "absent"
    return f"sequence of {len(value)}" if isinstance(value, list) else f"{_type(value)}: {_values(value)}"


def _type(array: "np.ndarray[Any, Any]") -> str:
    kind = "bytes" if array.dtype == object else str(array.dtype)
    return f"{kind}[{','.join(map(str, array.shape))}]"


def _values(array: "np.ndarray[Any, Any]") -> str:
    shown = [_value(x) for x in array.reshape(-1)[:_MOST_VALUES].tolist()]
    return f"[{', '.join(shown + ['...'] * (array.size > _MOST_VALUES))}]"


def _value(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4f}"
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
