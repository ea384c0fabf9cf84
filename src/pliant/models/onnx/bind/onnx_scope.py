"""Resolve names inside functions and branches, and the opset that applies there."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pliant.errors import GraphError
from pliant.models.onnx.onnx_nodes import schema_of

MAX_DEPTH = 64
"""The deepest nesting of function calls and branches."""


@dataclass(frozen=True)
class Scope:
    """The scope of a node: the meaning of its names, the opsets in force, attributes of the enclosing
    function.
    """

    opsets: Mapping[str, int]
    names: dict[str, str] = field(default_factory=dict)
    attributes: Mapping[str, Any] = field(default_factory=dict)
    prefix: str = ""
    depth: int = 0

    def name(self, formal: str) -> str:
        """The model-wide name of a name in this scope; raises GraphError for an undefined name."""
        if not self.depth:
            return formal
        if formal not in self.names:
            raise GraphError(f"{self.prefix!r} reads {formal!r}, which nothing before it makes.")
        return self.names[formal]

    def schema(self, node: Any) -> Any | None:
        """ONNX's schema of a node's operator at the opset in force; None where there is none."""
        version = self.opsets.get("" if node.domain == "ai.onnx" else node.domain)
        return None if version is None else schema_of(node.domain, node.op_type, version)

    def function_scope(self, function: Any, node: Any) -> "Scope":
        """The scope of a function's body that replaces `node`, whose names are model-wide names."""
        attributes = {a.name: a for a in function.attribute_proto} | {a.name: a for a in node.attribute}
        opsets = {"" if o.domain == "ai.onnx" else o.domain: o.version for o in function.opset_import}
        return Scope(
            {**self.opsets, **opsets},
            dict.fromkeys(function.input, "") | dict(zip(function.input, node.input, strict=False)),
            self._defaults(node) | attributes,
            f"{self.prefix}{node.name or node.op_type}/",
            self.depth + 1,
        )

    def branch_scope(self, node: Any) -> "Scope":
        """The scope of a branch of `node`: it sees the names of the enclosing scope."""
        names = _InheritedNames(self.names if self.depth else _OuterNames())
        prefix = f"{self.prefix}{node.name or node.op_type}/"
        return Scope(self.opsets, names, self.attributes, prefix, self.depth + 1)

    def _defaults(self, node: Any) -> dict[str, Any]:
        schema = self.schema(node)
        declared = {} if schema is None else schema.attributes
        return {name: a.default_value for name, a in declared.items() if a.default_value.type}


class _OuterNames(dict[str, str]):
    """The outermost scope, in which each name means itself."""

    def __contains__(self, name: object) -> bool:
        return True

    def __missing__(self, name: str) -> str:
        return name


class _InheritedNames(dict[str, str]):
    """The names of a branch, falling back to those of the enclosing scope."""

    def __init__(self, outer: Mapping[str, str]) -> None:
        super().__init__()
        self._outer = outer

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or name in self._outer

    def __missing__(self, name: str) -> str:
        return self._outer[name]
