"""Read headers in the form of ASGI scopes and httptools: bytes, with lower-case names."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, final

from starlette.types import Scope


def header_of(scope: Scope, name: bytes) -> str | None:
    """The first header with a name; None if there is none."""
    for key, value in scope["headers"]:
        if key == name:
            text: str = value.decode("latin-1")
            return text
    return None


def headers_of(scope: Scope, name: bytes) -> list[str]:
    """All headers with a name."""
    return [value.decode("latin-1") for key, value in scope["headers"] if key == name]


@final
class HeaderTexts(Mapping[str, str]):
    """The first header of each name; lookup ignores case."""

    def __init__(self, raw: Sequence[tuple[bytes, bytes]]) -> None:
        self._texts = {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(raw)}

    def __getitem__(self, name: str) -> str:
        return self._texts[name.lower()]

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __len__(self) -> int:
        return len(self._texts)

    def get(self, name: str, default: Any = None) -> Any:
        return self._texts.get(name.lower(), default)
