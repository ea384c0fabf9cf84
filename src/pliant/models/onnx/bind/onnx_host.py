"""The operators that run on the host, between executables: their output shapes or their control flow depend
on data.
"""

from typing import Any

CONTROL = frozenset(("If", "Loop", "Scan", "SequenceMap"))
"""Operators with bodies, which are bound like other graphs."""

_BY_DATA = ("NonZero", "NonMaxSuppression", "Unique")
_SEQUENCES = (
    *("SequenceConstruct", "SequenceEmpty", "SequenceInsert", "SequenceErase", "SequenceAt"),
    *("SequenceLength", "SplitToSequence", "ConcatFromSequence"),
    *("Optional", "OptionalHasElement", "OptionalGetElement"),
)

HOST = CONTROL.union(_BY_DATA, _SEQUENCES)
"""Operators that only the host runs. It also runs others if an operand that determines shapes is data."""


def is_host(node: Any) -> bool:
    """Whether no kernel could run a node whatever is known of its inputs."""
    return node.domain in ("", "ai.onnx") and node.op_type in HOST
