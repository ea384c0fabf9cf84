"""`node.toml`: the options of `pliant node` in a file, with a `[[model]]` for each model."""

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pliant.errors import InputError
from pliant.secret_sources import CREDENTIAL, VARIABLE

MODEL = "model"
SECRETS = {
    **dict.fromkeys(("token_file", "peer_token_file", "operator_token_file"), (VARIABLE, CREDENTIAL)),
    **dict.fromkeys(("tls_key", "key"), (CREDENTIAL,)),
}
"""Options that may come from the environment or a credential instead of a file: `{ env = "NAME" }`."""
_TABLE = re.compile(r"\s*\[\[?\s*([\w.\"'-]+)\s*\]\]?")
_KEY = re.compile(r"\s*[\"']?([\w-]+)[\"']?\s*=")


@dataclass(frozen=True, slots=True)
class NodeFile:
    """The content of a file: options of the node and of each model, by the names of their fields."""

    node: Mapping[str, Any]
    models: tuple[Mapping[str, Any], ...]


def read_node_file(path: Path, node: Mapping[str, Any], model: Mapping[str, Any]) -> NodeFile:
    """Read the file at `path`; `node` and `model` are the types of the known options.

    Raises InputError naming every mistake with its line, and the nearest known key for an unknown one.
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
    wrong = list(_mistakes(found, node, 0, lines))
    for at, table in enumerate(tables, 1):
        wrong += _mistakes(table, model, at, lines)
        if "source" not in table:
            wrong.append(
                (lines.get((at, ""), 1), 'this model has no source: add one, such as source = "sst2".')
            )
    if wrong:
        raise InputError("\n".join(f"{path}:{line}: {why}" for line, why in sorted(wrong)))
    return NodeFile(_named(found), tuple(_named(table) for table in tables))


def _named(table: Mapping[str, Any]) -> dict[str, Any]:
    return {_field(key): _secret(value) for key, value in table.items()}


def _secret(value: Any) -> Any:
    """`{ env = "NAME" }` as the command line has it: `env:NAME`."""
    return value if not isinstance(value, dict) else "".join(f"{kind}:{name}" for kind, name in value.items())


def _field(key: str) -> str:
    return key.replace("-", "_")


def _mistakes(
    table: Mapping[str, Any], known: Mapping[str, Any], at: int, lines: Mapping[tuple[int, str], int]
) -> Iterator[tuple[int, str]]:
    for key, value in table.items():
        line = lines.get((at, key), lines.get((at, ""), 1))
        if _field(key) not in known:
            near = get_close_matches(_field(key), known, 1, 0.0)
            yield line, f"{key!r} is unknown; the nearest known key is {near[0].replace('_', '-')!r}."
        elif isinstance(value, dict) and (kinds := SECRETS.get(_field(key))):
            if [f"{kind}:" for kind in value if isinstance(value[kind], str)] not in [[one] for one in kinds]:
                ways = " or ".join(f'{{ {kind.rstrip(":")} = "NAME" }}' for kind in kinds)
                yield line, f"{key} is {value!r:.60}; give a path, or {ways}."
        elif not _fits(value, known[_field(key)]):
            yield line, f"{key} is {value!r:.60}; give {_wanted(known[_field(key)])}."


def _fits(value: Any, wanted: Any) -> bool:
    if get_origin(wanted) in (Union, UnionType):
        return any(_fits(value, one) for one in get_args(wanted) if one is not NoneType)
    if get_origin(wanted) is Literal:
        return value in get_args(wanted)
    if get_origin(wanted) in (list, tuple):
        return isinstance(value, list) and all(isinstance(one, str) for one in value)
    if wanted is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if wanted is Path:
        return isinstance(value, str)
    return isinstance(value, wanted) and (wanted is bool or not isinstance(value, bool))


def _wanted(wanted: Any) -> str:
    if get_origin(wanted) in (Union, UnionType):
        return " or ".join(_wanted(one) for one in get_args(wanted) if one is not NoneType)
    if get_origin(wanted) is Literal:
        return " or ".join(f'"{one}"' for one in get_args(wanted))
    if get_origin(wanted) in (list, tuple):
        return "a list of strings"
    names = {
        str: "a string",
        Path: "a string",
        bool: "true or false",
        int: "a whole number",
        float: "a number",
    }
    return names[wanted]


def _lines(text: str) -> Iterator[tuple[tuple[int, str], int]]:
    """Yield the line of each key by its [[model]] number (0 before any) and name ("" for the table)."""
    at = 0
    for number, line in enumerate(text.splitlines(), 1):
        if (table := _TABLE.match(line)) is not None:
            at += table[1] == MODEL
            yield (at if table[1] == MODEL else 0, "" if table[1] == MODEL else table[1]), number
        elif (key := _KEY.match(line)) is not None:
            yield (at, key[1]), number
