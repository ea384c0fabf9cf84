"""`node.toml`: the options of `pliant node` in a file, with a `[[model]]` for each model."""

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from typer.models import OptionInfo

from pliant.errors import InputError, PliantError
from pliant.secret_sources import CREDENTIAL, VARIABLE

MODEL = "model"
SECRETS = {
    **dict.fromkeys(("token_file", "peer_token_file", "operator_token_file"), (VARIABLE, CREDENTIAL)),
    **dict.fromkeys(("tls_key", "key"), (CREDENTIAL,)),
}
"""Options that may come from the environment or a credential instead of a file: `{ env = "NAME" }`."""
_EXAMPLES = {
    "client_rate": '"50:100" for 50 requests a second, and 100 at once',
    "client_bandwidth": '"10MB:50MB" for 10 MB a second, and 50 MB at once',
    **dict.fromkeys(("latency", "settle"), '"200ms"'),
    **dict.fromkeys(("memory", "preload"), '"100MB"'),
    "power": '"4.5" for watts, or "measure"',
}
"""Examples of options whose strings have a unit, which a number lacks."""
_TABLE = re.compile(r"\s*\[\[?\s*([\w.\"'-]+)\s*\]\]?")
_KEY = re.compile(r"\s*[\"']?([\w-]+)[\"']?\s*=")


@dataclass(frozen=True, slots=True)
class NodeFile:
    """The content of a file: options of the node and of each model, by the names of their fields."""

    node: Mapping[str, Any]
    models: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True)
class FileOptions:
    """The options that a table may have: their types, with the ranges of the command line, and parsers.

    A parser raises PliantError for a value that the option cannot have.
    """

    types: Mapping[str, Any]
    parsers: Mapping[str, Callable[[Any], object]]


NodeCheck = Callable[[Mapping[str, Any], int], Iterator[tuple[str, str]]]
"""Yields the mistakes of the node's options, beside a number of models in the file: option, what is wrong."""
ModelCheck = Callable[[Mapping[str, Any]], Iterator[tuple[str, str]]]
"""Yields the mistakes of a model that no single option shows: the option to correct, and what is wrong."""


def read_node_file(
    path: Path, node: FileOptions, check_node: NodeCheck, model: FileOptions, check: ModelCheck
) -> NodeFile:
    """Read the file at `path` with options of the `node`, and in each `[[model]]` those of a `model`.

    `check_node` sees the valid options of the node, `check` those of each model that has a source. Raises
    InputError naming every mistake with its line, and the nearest known key for an unknown one.
    """
    try:
        text = path.read_text(encoding="utf-8")
        found = tomllib.loads(text)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read: {error}. Name another file for --config.") from error
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path} is not valid TOML: {error}.") from error
    tables, lines = found.pop(MODEL, []), dict(_lines(text))
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise InputError(f"{path}:{lines.get((0, MODEL), 1)}: write each model as a table: [[model]].")
    wrong = [(0, key, why) for key, why in _mistakes(found, node)]
    keys = {_field(key): key for key in found if (0, key) not in {one[:2] for one in wrong}}
    options = _named({key: found[key] for key in keys.values()})
    wrong += [(0, keys[name], why) for name, why in check_node(options, len(tables))]
    for at, table in enumerate(tables, 1):
        wrong += [(at, key, why) for key, why in _mistakes_of_model(table, model, check)]
    if wrong:
        placed = sorted((lines.get((at, key), lines.get((at, ""), 1)), why) for at, key, why in wrong)
        raise InputError("\n".join(f"{path}:{line}: {why}" for line, why in placed))
    return NodeFile(_named(found), tuple(_named(table) for table in tables))


def option_lines(path: Path) -> dict[str, int]:
    """The line of each option of the node in the file, by the name of its field; empty if it is gone."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return {}
    return {_field(key): line for (at, key), line in _lines(text) if at == 0 and key}


def _named(table: Mapping[str, Any]) -> dict[str, Any]:
    return {_field(key): _secret(value) for key, value in table.items()}


def _secret(value: Any) -> Any:
    """`{ env = "NAME" }` as the command line has it: `env:NAME`."""
    return value if not isinstance(value, dict) else "".join(f"{kind}:{name}" for kind, name in value.items())


def _field(key: str) -> str:
    return key.replace("-", "_")


def _mistakes_of_model(
    table: Mapping[str, Any], known: FileOptions, check: ModelCheck
) -> Iterator[tuple[str, str]]:
    """Yield as `_mistakes`; the key is "" for the table."""
    wrong = dict(_mistakes(table, known))
    yield from wrong.items()
    if "source" not in table:
        yield "", 'this model has no source: add one, such as source = "sst2".'
    elif "source" not in wrong:
        yield from check(_named({key: value for key, value in table.items() if key not in wrong}))


def _mistakes(table: Mapping[str, Any], known: FileOptions) -> Iterator[tuple[str, str]]:
    """Yield the keys with mistakes, and what is wrong."""
    for key, value in table.items():
        name = _field(key)
        if name not in known.types:
            near = get_close_matches(name, known.types, 1, 0.0)
            yield key, f"{key!r} is unknown; the nearest known key is {near[0].replace('_', '-')!r}."
        elif (wanted := _wanted(name, value, known.types[name])) is not None:
            yield key, f"{key} is {value!r:.60}; give {wanted}."
        elif (parse := known.parsers.get(name)) is not None:
            try:
                parse(_secret(value))
            except PliantError as error:
                yield key, f"{key}: {error}"


def _wanted(name: str, value: Any, kind: Any) -> str | None:
    """Return the values that the option has, unless `value` is of its type and in its range."""
    if isinstance(value, dict) and (kinds := SECRETS.get(name)):
        if [f"{kind}:" for kind in value if isinstance(value[kind], str)] in [[one] for one in kinds]:
            return None
        ways = " or ".join(f'{{ {kind.rstrip(":")} = "NAME" }}' for kind in kinds)
        return f"a path, or {ways}"
    if not _fits(value, kind):
        like = _EXAMPLES.get(name)
        return _described(kind) if like is None else f"{_described(kind)}, such as {like}"
    least, most = _range(kind)
    if (least is None or least <= value) and (most is None or value <= most):
        return None
    return f"{least:g} or more" if most is None else f"{least:g} to {most:g}"


def _range(kind: Any) -> tuple[float | None, float | None]:
    """Return the least and the greatest value that the command line accepts; None for no limit."""
    options = [one for one in getattr(kind, "__metadata__", ()) if isinstance(one, OptionInfo)]
    return (options[0].min, options[0].max) if options else (None, None)


def _fits(value: Any, kind: Any) -> bool:
    if get_origin(kind) is Annotated:
        return _fits(value, get_args(kind)[0])
    if get_origin(kind) in (Union, UnionType):
        return any(_fits(value, one) for one in get_args(kind) if one is not NoneType)
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    if get_origin(kind) in (list, tuple):
        return isinstance(value, list) and all(isinstance(one, str) for one in value)
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind is Path:
        return isinstance(value, str)
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def _described(kind: Any) -> str:
    if get_origin(kind) is Annotated:
        return _described(get_args(kind)[0])
    if get_origin(kind) in (Union, UnionType):
        return " or ".join(_described(one) for one in get_args(kind) if one is not NoneType)
    if get_origin(kind) is Literal:
        return " or ".join(f'"{one}"' for one in get_args(kind))
    if get_origin(kind) in (list, tuple):
        return "a list of strings"
    names = {
        str: "a string",
        Path: "a string",
        bool: "true or false",
        int: "a whole number",
        float: "a number",
    }
    return names[kind]


def _lines(text: str) -> Iterator[tuple[tuple[int, str], int]]:
    """Yield the line of each key by its [[model]] number (0 before any) and name ("" for the table)."""
    at = 0
    for number, line in enumerate(text.splitlines(), 1):
        if (table := _TABLE.match(line)) is not None:
            at += table[1] == MODEL
            yield (at if table[1] == MODEL else 0, "" if table[1] == MODEL else table[1]), number
        elif (key := _KEY.match(line)) is not None:
            yield (at, key[1]), number
