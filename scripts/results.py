"""Find pages of docs/results that are older than the code they measure, and write the note that says so.

    python scripts/results.py            # list pages that need a note and lack it; status 1 if any
    python scripts/results.py --write    # add the notes

A page names the commit it was measured on in a line `Commit: HASH`, and the paths it measures in a line
`Measures: PATH PATH` (without it: all of `src/pliant`). It needs a note when the commit is missing, dirty or
unknown to this repository, or when one of those paths has changed since.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NOTE = "> **Note.**"
_COMMIT = re.compile(r"^Commit: (\S+)", re.M)
_MEASURES = re.compile(r"^Measures: (.+?)\s*$", re.M)
_DEFAULT = ("src/pliant",)


def main() -> int:
    """List or mark the pages; the exit status is 1 where a note is missing."""
    missing = {page: fault for page in pages() if (fault := fault_of(page)) and not has_note(page)}
    for page, fault in missing.items():
        print(f"{page.relative_to(ROOT)}: {fault}")
        if "--write" in sys.argv[1:]:
            page.write_text(noted(page.read_text(), fault))
    return 1 if missing and "--write" not in sys.argv[1:] else 0


def pages(folder: Path = ROOT / "docs" / "results") -> list[Path]:
    """Every results page, sorted by name."""
    return sorted(folder.glob("*.md"))


def has_note(page: Path) -> bool:
    """Whether the page carries a note on its figures above its first section."""
    head = page.read_text().split("\n## ", 1)[0]
    return NOTE in head


def fault_of(page: Path, root: Path = ROOT) -> str | None:
    """Why the page's figures do not describe the code of `root` as it stands; None where they do."""
    text = page.read_text()
    found = _COMMIT.search(text)
    if found is None:
        return "this page names no commit that its figures were measured on."
    commit, _, dirty = found[1].partition("-")
    if not knows(commit, root):
        return f"measured on {commit}, which is no commit of this repository."
    said = _MEASURES.search(text)
    paths = tuple(said[1].split()) if said else _DEFAULT
    changed = _git(root, "log", "--format=%h", f"{commit}..HEAD", "--", *paths)
    age = f"; {_listed(paths)} changed since then" if changed else ""
    if dirty:
        return f"measured on {commit} with changes that were never committed{age}."
    return f"measured on {commit}{age}." if changed else None


def knows(commit: str, root: Path = ROOT) -> bool:
    """Whether `commit` is a commit of the repository at `root`."""
    done = subprocess.run(
        ["git", "cat-file", "-e", f"{commit}^{{commit}}"], cwd=root, capture_output=True, check=False
    )
    return done.returncode == 0


def _listed(paths: tuple[str, ...]) -> str:
    return f"{', '.join(paths)} {'has' if len(paths) == 1 else 'have'}"


def noted(text: str, fault: str) -> str:
    """`text` with the note below its title."""
    title, _, rest = text.partition("\n")
    return f"{title}\n\n{NOTE} {fault[0].upper()}{fault[1:]} The figures hold for that code only.\n{rest}"


def _git(root: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    sys.exit(main())
