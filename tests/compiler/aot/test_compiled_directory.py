"""A compiled graph on disk: loaded it answers as before, damaged it is refused."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from pliant.api.load_compiled import load
from pliant.compiler.aot.compiled_directory import PROGRAM, WEIGHTS, load_directory, save
from pliant.compiler.executable.call import Target
from pliant.compiler.executable.image import make_image
from pliant.errors import InputError, KernelError, PliantError, StoreError
from pliant.kernels.emit.isa import NEON, host_isa
from pliant.kernels.runtime.jit import Library
from pliant.kernels.runtime.thread_pool import ThreadPool
from pliant.run.graph.array_stage import ExecutableStage
from tests.compiler.aot.test_ahead_of_time import FEEDS, a_graph, a_look_up, expected


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A saved graph."""
    save(make_image(a_graph(), Target(host_isa())), tmp_path / "graph")
    return tmp_path / "graph"


def test_a_loaded_graph_answers_as_the_session_it_came_from(saved: Path) -> None:
    """Bit for bit: the same kernels on the same bytes."""
    opened = load_directory(saved)
    with ThreadPool(2, Library(host_isa())) as pool:
        stage = ExecutableStage(opened.program, opened.weights, opened.addresses, pool)
        answers = np.concatenate([a.ravel() for a in stage.run(FEEDS).values()])
        np.testing.assert_array_equal(answers, expected())


def test_a_loaded_graph_refuses_an_index_outside_its_dimension(tmp_path: Path) -> None:
    """Where a kernel writes what it met travels with the directory; the next run starts clean."""
    save(make_image(a_look_up(), Target(host_isa())), tmp_path / "graph")
    x = np.arange(5, dtype=np.float32)
    with load(tmp_path / "graph", threads=1) as session:
        with pytest.raises(InputError, match=r"'look up' \(Gather\).* index -6, .* give -5 to 4"):
            session.run({"x": x, "i": np.array([-6, 0])})
        assert session.run({"x": x, "i": np.array([-5, 4])})["y"].tolist() == [0, 4]


@pytest.mark.parametrize("where", [0, 100, -1])
def test_a_changed_byte_is_noticed_wherever_it_is(saved: Path, where: int) -> None:
    """Program, weights and kernels: none is run or read when it is not what was written."""
    for path in (saved / WEIGHTS, *(saved / "kernels").iterdir()):
        whole = path.read_bytes()
        damaged = bytearray(whole)
        damaged[where] ^= 4
        path.write_bytes(damaged)
        with pytest.raises(StoreError, match=path.name):
            load_directory(saved)
        path.write_bytes(whole[:-3])
        with pytest.raises(StoreError, match=path.name):
            load_directory(saved)
        path.unlink()
        with pytest.raises(StoreError, match=path.name):
            load_directory(saved)
        path.write_bytes(whole)
    load_directory(saved)


def test_a_broken_or_newer_program_is_refused(saved: Path) -> None:
    """JSON that ends early, and a version to come."""
    path = saved / PROGRAM
    text = path.read_bytes()
    path.write_bytes(text[: len(text) // 2])
    with pytest.raises(StoreError, match="damaged"):
        load_directory(saved)
    path.write_bytes(text.replace(b'"version":2', b'"version":9'))
    with pytest.raises(StoreError, match="version 9"):
        load_directory(saved)
    path.unlink()
    with pytest.raises(StoreError, match="no compiled graph"):
        load_directory(saved)


def test_another_cpus_graph_is_refused_here(tmp_path: Path) -> None:
    """Objects for Arm would be an illegal instruction."""
    save(make_image(a_graph(), Target(NEON)), tmp_path / "arm")
    with pytest.raises(KernelError, match=r"compiled for aarch64.* --target"):
        load_directory(tmp_path / "arm")


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

    monkeypatch.setattr("pliant.compiler.aot.compiled_directory.write_weights", full)
    with pytest.raises(PliantError, match="No space left"):
        save(image, tmp_path / "old")
    load_directory(tmp_path / "old")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["mine", "old"]


def test_no_changed_byte_of_the_program_is_believed(saved: Path) -> None:
    """Its arguments become addresses: one digit that still reads as JSON would write anywhere."""
    path = saved / PROGRAM
    whole = path.read_bytes()
    for at in (30, *range(100, len(whole), max(len(whole) // 40, 1))):
        damaged = bytearray(whole)
        damaged[at] = ord("1") if damaged[at] != ord("1") else ord("2")
        path.write_bytes(damaged)
        with pytest.raises(StoreError, match=PROGRAM):
            load_directory(saved)


def test_a_file_in_the_way_is_left_and_a_link_keeps_pointing(tmp_path: Path) -> None:
    """Users mistype; a link to where models live must not become a directory of its own."""
    image = make_image(a_graph(), Target(host_isa()))
    (tmp_path / "file").write_text("kept")
    with pytest.raises(InputError, match="is a file"):
        save(image, tmp_path / "file")
    assert (tmp_path / "file").read_text() == "kept"
    (tmp_path / "link").symlink_to(tmp_path / "there")
    for _ in range(2):
        save(image, tmp_path / "link")
        load_directory(tmp_path / "there")
    assert (tmp_path / "link").is_symlink()


def test_what_a_killed_writer_left_is_cleared_and_what_it_set_aside_given_back(tmp_path: Path) -> None:
    """A machine that loses power between two renames has lost neither graph."""
    image = make_image(a_graph(), Target(host_isa()))
    save(image, tmp_path / "graph")
    gone = subprocess.Popen(["true"])
    gone.wait()
    (tmp_path / "graph").rename(tmp_path / f".graph.replaced-{gone.pid}")
    (tmp_path / f".graph.building-{gone.pid}").mkdir()
    save(image, tmp_path / "graph")
    load_directory(tmp_path / "graph")
    assert [p.name for p in tmp_path.iterdir()] == ["graph"]


def test_two_writers_at_once_leave_one_whole_graph(tmp_path: Path) -> None:
    """Two shells with the same `-o`: whichever is last, what stands there is one of the two."""
    code = (
        "import sys; from pathlib import Path; from tests.compiler.aot.test_ahead_of_time import a_graph;"
        "from pliant.compiler.executable.call import Target;"
        "from pliant.compiler.executable.image import make_image;"
        "from pliant.compiler.aot.compiled_directory import save;"
        "from pliant.kernels.emit.isa import host_isa;"
        "image = make_image(a_graph(), Target(host_isa()));"
        "[save(image, Path(sys.argv[1])) for _ in range(4)]"
    )
    writers = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "graph")]) for _ in range(2)]
    assert [writer.wait() for writer in writers] == [0, 0]
    load_directory(tmp_path / "graph")
    assert [p.name for p in tmp_path.iterdir()] == ["graph"]
