"""A compiled graph on disk: loaded it answers as before, damaged it is refused."""

from pathlib import Path

import numpy as np
import pytest

from pliant.compile.call import Target
from pliant.compile.image import make_image
from pliant.compile.saved import PROGRAM, WEIGHTS, open_saved, save
from pliant.errors import InputError, KernelError, PliantError, StoreError
from pliant.kernels.isa import NEON, host_isa
from pliant.kernels.jit import Library
from pliant.kernels.pool import Pool
from pliant.run.compiled import CompiledSession

from .test_ahead import FEEDS, a_graph, expected


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A saved graph."""
    save(make_image(a_graph(), Target(host_isa())), tmp_path / "graph")
    return tmp_path / "graph"


def test_a_loaded_graph_answers_as_the_session_it_came_from(saved: Path) -> None:
    """Bit for bit: the same kernels on the same bytes."""
    opened = open_saved(saved)
    with Pool(2, Library(host_isa())) as pool:
        session = CompiledSession(opened.program, opened.weights, opened.addresses, pool)
        answers = np.concatenate([a.ravel() for a in session.run(FEEDS).values()])
        np.testing.assert_array_equal(answers, expected())


@pytest.mark.parametrize("where", [0, 100, -1])
def test_a_changed_byte_is_noticed_wherever_it_is(saved: Path, where: int) -> None:
    """Program, weights and kernels: none is run or read when it is not what was written."""
    for path in (saved / WEIGHTS, *(saved / "kernels").iterdir()):
        whole = path.read_bytes()
        damaged = bytearray(whole)
        damaged[where] ^= 4
        path.write_bytes(damaged)
        with pytest.raises(StoreError, match=path.name):
            open_saved(saved)
        path.write_bytes(whole[:-3])
        with pytest.raises(StoreError, match=path.name):
            open_saved(saved)
        path.unlink()
        with pytest.raises(StoreError, match=path.name):
            open_saved(saved)
        path.write_bytes(whole)
    open_saved(saved)


def test_a_broken_or_newer_program_is_refused(saved: Path) -> None:
    """JSON that ends early, and a version to come."""
    path = saved / PROGRAM
    text = path.read_bytes()
    path.write_bytes(text[: len(text) // 2])
    with pytest.raises(StoreError, match="damaged"):
        open_saved(saved)
    path.write_bytes(text.replace(b'"version":1', b'"version":9'))
    with pytest.raises(StoreError, match="version 9"):
        open_saved(saved)
    path.unlink()
    with pytest.raises(StoreError, match="no compiled graph"):
        open_saved(saved)


def test_another_cpus_graph_is_refused_here(tmp_path: Path) -> None:
    """Objects for Arm would be an illegal instruction."""
    save(make_image(a_graph(), Target(NEON)), tmp_path / "arm")
    with pytest.raises(KernelError, match="neon"):
        open_saved(tmp_path / "arm")


def test_a_foreign_directory_is_not_replaced_and_a_failure_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk in the middle: neither a half directory nor a lost old one."""
    image = make_image(a_graph(), Target(host_isa()))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("kept")
    with pytest.raises(InputError, match="not empty"):
        save(image, tmp_path / "mine")
    save(image, tmp_path / "old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pliant.compile.saved.write_weights", full)
    with pytest.raises(PliantError, match="No space left"):
        save(image, tmp_path / "old")
    open_saved(tmp_path / "old")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["mine", "old"]
