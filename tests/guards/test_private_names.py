"""Guard: tests and benches use the public names of pliant, and no private ones by their text.

Protects what may be changed inside a module without a test of it failing. ruff's rule SLF001 holds attributes
(`x._name`); this one holds imports and the texts that monkeypatch takes, which no linter sees. Where a test
needs a seam, the module gets one: a parameter, a property, a constant.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
_PATCHES = {"setattr", "delattr", "patch", "getattr"}


def private_names(source: str) -> Iterator[str]:
    """The private names of pliant that a module imports, or patches by their text."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.ImportFrom(module=str(module), names=names) if module.split(".")[0] == "pliant":
                yield from (f"{module}.{alias.name}" for alias in names if _is_private(alias.name))
            case ast.Call(func=ast.Attribute(attr=called) | ast.Name(id=called), args=given):
                texts = [one.value for one in given if isinstance(one, ast.Constant)]
                if called in _PATCHES:
                    yield from (text for text in texts if isinstance(text, str) and _is_private(text))


def _is_private(name: str) -> bool:
    last = name.rpartition(".")[2]
    return last.startswith("_") and not last.startswith("__") and last.isidentifier()


def test_no_private_name_is_imported_or_patched() -> None:
    """What is found needs a seam."""
    paths = [path for room in ("tests", "bench") for path in sorted((ROOT / room).rglob("*.py"))]
    found = {str(path): list(private_names(path.read_text(encoding="utf-8"))) for path in paths}
    assert not any(found.values()), {path: names for path, names in found.items() if names}


def test_private_names_are_found() -> None:
    """A pattern that finds nothing would let everything pass."""
    source = (
        "from pliant.ir.graph import _walk, Graph\n"
        "from tests.tiny import _made\n"
        "monkeypatch.setattr('pliant.serve.server._LIMIT', 2)\n"
        "monkeypatch.setattr(session, '_bind', counted)\n"
        "monkeypatch.setattr(session, '__call__', counted)\n"
        "monkeypatch.setenv('_A', 'b')\n"
    )
    assert list(private_names(source)) == ["pliant.ir.graph._walk", "pliant.serve.server._LIMIT", "_bind"]
