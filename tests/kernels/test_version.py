"""The generators' version: it changes with every byte that may change a kernel."""

import ast
import os
import time
from pathlib import Path

from pliant.kernels import version
from pliant.kernels.version import source_version

LATER_S = time.time() + 1e6


def test_the_version_follows_content_and_names(tmp_path: Path) -> None:
    """A changed generator must not meet an old kernel, and an unchanged one must."""
    (tmp_path / "a.py").write_text("x = 1\n")
    first = source_version(tmp_path, LATER_S)
    assert first is not None
    assert source_version(tmp_path, LATER_S) == first
    (tmp_path / "a.py").write_text("x = 2\n")
    changed = source_version(tmp_path, LATER_S)
    (tmp_path / "a.py").rename(tmp_path / "b.py")
    assert len({first, changed, source_version(tmp_path, LATER_S)}) == 3


def test_source_that_changed_after_its_import_has_no_version(tmp_path: Path) -> None:
    """What runs is then older than the file; its kernels must not be kept under the file's hash."""
    (tmp_path / "a.py").write_text("x = 1\n")
    os.utime(tmp_path / "a.py", (1000.0, 1000.0))
    assert source_version(tmp_path, 1001.0) is not None
    assert source_version(tmp_path, 999.0) is None


def test_without_source_there_is_no_version(tmp_path: Path) -> None:
    """Frozen programs ship none; their kernels are then known by their IR."""
    assert source_version(tmp_path, LATER_S) is None
    assert source_version(tmp_path / "nowhere", LATER_S) is None


def test_generators_depend_on_nothing_that_is_not_hashed() -> None:
    """Another import would let a kernel change while the version stays; annotations cannot change one."""
    # settings say where objects are kept and what a child process sees, not what a kernel is
    harmless = ("pliant.kernels", "pliant.errors", "pliant.arrays", "pliant.settings")
    for path in Path(version.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pliant"):
                assert (node.module or "").startswith(harmless), path.name
