"""What the pages of docs/ name exists: files of the repository, and pages that they link to."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
PLACES = (ROOT, ROOT / "src" / "pliant")
"""Where a path in a page begins."""
_FILE = re.compile(r"`([A-Za-z_][\w.-]*(?:/[\w.-]+)+\.(?:py|toml|yml|md|json|c|h))`")
_FOLDER = re.compile(r"`((?:src|tests|bench|docs|scripts|research|testbed)(?:/[\w.-]+)*)/?`")
_LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


def named(text: str) -> Iterator[str]:
    """Files and folders that a page names as code."""
    for pattern in (_FILE, _FOLDER):
        yield from pattern.findall(text)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_path_that_a_page_names_exists(page: Path) -> None:
    """A file that moves leaves its readers without a way; the map of the house is made of paths."""
    text = page.read_text(encoding="utf-8")
    lost = [path for path in named(text) if not any((place / path).exists() for place in PLACES)]
    lost += [link for link in _LINK.findall(text) if not (page.parent / link).exists()]
    assert not lost, f"{page.relative_to(ROOT)} names what does not exist: {', '.join(lost)}"


def test_paths_are_found_in_a_page() -> None:
    """A pattern that finds nothing would let every path pass."""
    house = (ROOT / "docs" / "house.md").read_text(encoding="utf-8")
    assert len(set(named(house))) > 60
    assert list(named("`run/gone.py`, `src/gone/`, `a/cpu` and `pliant run`")) == ["run/gone.py", "src/gone"]


def test_every_room_is_on_the_map() -> None:
    """A package that the map leaves out is one that nobody finds."""
    house = (ROOT / "docs" / "house.md").read_text(encoding="utf-8")
    named_rooms = {
        room for row in re.findall(r"^\|([^|]*`[^|]*)\|", house, re.M) for room in re.findall(r"`(\w+)`", row)
    }
    package = ROOT / "src" / "pliant"
    rooms = {p.stem for p in package.iterdir() if p.is_dir() or p.suffix == ".py"} - {
        "__init__",
        "__main__",
        "__pycache__",
    }
    assert named_rooms == rooms
