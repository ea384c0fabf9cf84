"""A published figure names code that exists, or its page says what is wrong with it (house.md 36)."""

import importlib.util
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent


def _script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("results", ROOT / "scripts" / "results.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


results = _script()


@pytest.mark.parametrize("page", results.pages(), ids=lambda page: page.name)
def test_a_results_page_measures_this_code_or_carries_a_note(page: Path) -> None:
    """A reader must not take figures of old code, or of code nobody has, for figures of this code."""
    _skip_without_history()
    fault = results.fault_of(page)
    assert fault is None or results.has_note(page), f"{fault} Run `python scripts/results.py --write`."


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with one commit of src/pliant and one of docs."""
    for path in ("src/pliant/a.py", "docs/results/none.md"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("1\n")
    for words in (
        ["init", "-q"],
        ["add", "src"],
        ["commit", "-qm", "a"],
        ["add", "."],
        ["commit", "-qm", "b"],
    ):
        _git(tmp_path, *words)
    return tmp_path


def test_a_page_is_current_until_what_it_measures_changes(repository: Path) -> None:
    """Changes elsewhere, such as the page itself being committed, do not age it."""
    page = _page(repository, _git(repository, "rev-parse", "--short", "HEAD~1"))
    assert results.fault_of(page, repository) is None
    (repository / "src/pliant/a.py").write_text("2\n")
    _git(repository, "commit", "-qam", "c")
    assert "src/pliant has changed" in results.fault_of(page, repository)
    page.write_text(page.read_text() + "Measures: bench src/pliant/kernels\n")
    assert results.fault_of(page, repository) is None


def test_a_dirty_or_unknown_commit_is_a_fault(repository: Path) -> None:
    """Nobody can run what was measured there."""
    head = _git(repository, "rev-parse", "--short", "HEAD")
    assert "never committed" in results.fault_of(_page(repository, f"{head}-dirty"), repository)
    assert "no commit" in results.fault_of(_page(repository, "0123456"), repository)
    page = _page(repository, head)
    page.write_text("# no commit line\n")
    assert "names no commit" in results.fault_of(page, repository)


def test_a_note_stands_above_the_first_section(tmp_path: Path) -> None:
    """A note below a table is read too late."""
    page = tmp_path / "page.md"
    page.write_text(f"# page\n\n## Table\n\n{results.NOTE} old\n")
    assert not results.has_note(page)
    page.write_text(results.noted(page.read_text(), "measured on 0123456."))
    assert results.has_note(page)


def _page(repository: Path, commit: str) -> Path:
    page = repository / "docs" / "results" / "page.md"
    page.write_text(f"# page\n\nCommit: {commit}  \n")
    return page


def _git(root: Path, *words: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    done = subprocess.run(["git", *who, *words], cwd=root, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _skip_without_history() -> None:
    """A source archive or a shallow clone cannot tell what changed since a commit."""
    done = subprocess.run(
        ["git", "rev-parse", "--is-shallow-repository"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.stdout.strip() != "false":
        pytest.skip("the history of commits is not here")
