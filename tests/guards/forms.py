"""What guards compare of values, types and signatures, as text that no move of a module changes."""

import re
from collections.abc import Callable, Collection
from inspect import Parameter, signature
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

_QUALIFIERS = re.compile(r"(?<![\w.'\"])(?:[A-Za-z_]\w*\.)+(?=[A-Za-z_])")
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def shown_type(annotation: Any) -> str:
    """An annotation without the modules that its names come from, and without Typer's help."""
    if annotation is Parameter.empty:
        return "?"
    if get_origin(annotation) is Annotated:
        return shown_type(get_args(annotation)[0])
    if get_origin(annotation) is Literal:
        return "|".join(map(str, get_args(annotation)))
    if get_origin(annotation) in (Union, UnionType):
        return " | ".join(map(shown_type, get_args(annotation)))
    if isinstance(annotation, str):
        return _QUALIFIERS.sub("", annotation)
    if isinstance(annotation, type) and not get_args(annotation):
        return "None" if annotation is NoneType else annotation.__name__
    return _QUALIFIERS.sub("", re.sub(r"Annotated\[(\w+), [^]]*\]", r"\1", str(annotation)))


def shown_signature(of: Callable[..., Any]) -> str:
    """`(name: type = default, ...) -> type`, the defaults as they print."""
    found = signature(of)
    parts, is_bare = [], False
    for one in found.parameters.values():
        if one.name == "self":
            continue
        if one.kind is Parameter.KEYWORD_ONLY and not is_bare:
            parts.append("*")
        is_bare |= one.kind in (Parameter.KEYWORD_ONLY, Parameter.VAR_POSITIONAL)
        parts.append(_parameter(one))
    answer = (
        "" if found.return_annotation is Parameter.empty else f" -> {shown_type(found.return_annotation)}"
    )
    return f"({', '.join(parts)}){answer}"


def _parameter(one: Parameter) -> str:
    stars = {Parameter.VAR_POSITIONAL: "*", Parameter.VAR_KEYWORD: "**"}.get(one.kind, "")
    default = "" if one.default is Parameter.empty else f" = {_ADDRESS.sub('', repr(one.default))}"
    return f"{stars}{one.name}: {shown_type(one.annotation)}{default}"


def shape_of(value: Any, maps: Collection[str] = (), name: str = "") -> Any:
    """What JSON holds, without its values: types by key; lists as the union of what they hold.

    An object under a key of `maps` has data for keys: it becomes {"*": what its values are}.
    """
    if isinstance(value, dict) and name in maps:
        return {"*": _union([shape_of(item, maps) for item in value.values()])}
    if isinstance(value, dict):
        return {key: shape_of(item, maps, key) for key, item in value.items()}
    if isinstance(value, list):
        return [_union([shape_of(item, maps) for item in value])]
    return "null" if value is None else type(value).__name__


def _union(shapes: list[Any]) -> Any:
    """One shape of many: keys that only some objects have end with a `?`."""
    if not shapes:
        return "nothing"
    objects = [s for s in shapes if isinstance(s, dict)]
    lists = [s[0] for s in shapes if isinstance(s, list)]
    found: list[Any] = []
    if objects:
        keys = dict.fromkeys(key for one in objects for key in one)
        found.append(
            {
                key + ("" if all(key in one for one in objects) else "?"): _union(
                    [one[key] for one in objects if key in one]
                )
                for key in keys
            }
        )
    if lists:
        known = [one for one in lists if one != "nothing"]
        found.append([_union(known or lists)])
    words = {word for s in shapes if isinstance(s, str) for word in s.split("|")}
    if words:
        found.append("|".join(sorted(words)))
    return found[0] if len(found) == 1 else {"any of": found}
