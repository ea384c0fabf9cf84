"""Names in texts that parse back: plain if possible, else as JSON strings."""

import json
import re
from collections.abc import Iterator

_PLAIN = re.compile(r"[A-Za-z_][\w.@#%:/=]*(?:-[\w.@#%:/=]+)*", re.ASCII)
"""Names that need no quotes."""
NAME = rf'(?:{_PLAIN.pattern}|"(?:[^"\\]|\\.)*")'
"""The pattern of a name as `name_text` writes it; compile it with re.ASCII."""


def name_text(name: str) -> str:
    """Return a name as written in a text."""
    return name if _PLAIN.fullmatch(name) else json.dumps(name)


def parse_name(text: str) -> str:
    """Parse a name written by `name_text`."""
    return str(json.loads(text)) if text.startswith('"') else text


def parse_names(text: str) -> Iterator[str]:
    """Parse several names separated by single spaces. Raises ValueError for invalid names."""
    names = re.findall(NAME, text, re.ASCII)
    if " ".join(names) != text.strip():
        raise ValueError(f"{text!r} are not valid names; those of other signs stand in quotes.")
    yield from map(parse_name, names)


def match_line(pattern: re.Pattern[str], text: str, what: str) -> re.Match[str]:
    """Match `text` against `pattern`. Raises ValueError with the expected form."""
    found = pattern.fullmatch(text)
    if found is None:
        raise ValueError(f"{text.strip()!r} is not {what}.")
    return found
