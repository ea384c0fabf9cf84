"""Damage of every kind gives an error that names what is broken, and never a store that opens."""

import errno
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np
import pytest

from pliant.errors import ModelError, StoreError
from pliant.ir.program import FULL
from pliant.models.hf.checkpoint import open_checkpoint
from pliant.store.build import BuildProgress, build, layer_layout
from pliant.store.manifest import VERSION
from pliant.store.read import SliceRun, open_store
from pliant.store.store_files import verify
from tests.tiny import tiny_spec

BUILD = """
import sys
from pathlib import Path
from pliant.models.hf.checkpoint import open_checkpoint
from pliant.store.build import build

def on_progress(p):
    if p.done == int(sys.argv[3]):
        print("reached", flush=True)
        sys.stdin.read()

build(open_checkpoint(Path(sys.argv[1])), Path(sys.argv[2]), overwrite=True, on_progress=on_progress)
"""


@pytest.fixture(scope="module")
def model(tiny_model: object) -> Path:
    return tiny_model()  # type: ignore[no-any-return, operator]


@pytest.fixture
def store(model: Path, tmp_path: Path) -> Path:
    return build(open_checkpoint(model), tmp_path / "store")


def flip(path: Path, offset: int, bit: int = 3) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1 << bit
    path.write_bytes(data)


def read_all(store: Path) -> None:
    """Open and read whatever a run could."""
    with open_store(store) as s:
        s.embeddings.check(np.arange(s.spec.vocab))
        for layer in range(s.spec.n_layers):
            for part in range(FULL + 1):
                run = SliceRun(layer, part, 0, s.spec.n_heads)
                s.read(run, np.empty(s.run_bytes(run), np.uint8))


@pytest.mark.parametrize("slice_", [0, 3])
@pytest.mark.parametrize("part", [0, 5, FULL])
def test_a_flipped_bit_of_a_shard_names_file_layer_part_and_slice(
    store: Path, part: int, slice_: int
) -> None:
    """Whoever repairs it needs to know which shard; whoever runs it must not get an answer."""
    with open_store(store) as s:
        entry = s.manifest.layers[1].parts[part]
    flip(store / "layer-01.safetensors", entry.offsets[slice_] + 17)
    name = "full fidelity" if part == FULL else f"plane {part}"
    with pytest.raises(StoreError, match=rf"layer-01\.safetensors.*layer 1, {name}, slice {slice_} "):
        read_all(store)
    with pytest.raises(StoreError, match=r"layer-01\.safetensors"):
        verify(store)


@pytest.mark.parametrize("name", ["resident.safetensors", "head.safetensors", "tokenizer.json"])
@pytest.mark.parametrize("place", [0.0, 0.3, 0.999])
def test_a_flipped_bit_of_a_small_file_is_found_at_open(store: Path, name: str, place: float) -> None:
    """These files are read once and trusted ever after."""
    flip(store / name, int(place * (store / name).stat().st_size))
    with pytest.raises(StoreError, match=name):
        open_store(store)
    with pytest.raises(StoreError, match=name):
        verify(store)


def test_a_flipped_bit_of_the_embeddings_is_found_before_it_is_used(store: Path) -> None:
    """The word table is too large to check at open, so its rows are checked when they are read."""
    path = store / "embeddings.safetensors"
    with open_store(store) as s:
        checked = s.manifest.file(path.name).checked_bytes
    flip(path, checked + 2 * 32 * 4 + 5)
    with open_store(store) as s:
        s.embeddings.check(np.array([0, 1, 3]))
        with pytest.raises(StoreError, match="row 2 of the word table"):
            s.embeddings.check(np.array([3, 2]))
    flip(path, checked - 1)
    with pytest.raises(StoreError, match=r"embeddings\.safetensors"):
        open_store(store)


def test_any_flipped_bit_of_the_manifest_is_found_or_changes_nothing(store: Path) -> None:
    """The manifest holds the hashes: a flip there must not move the goalposts."""
    path = store / "manifest.json"
    text = path.read_bytes()
    rng = np.random.default_rng(0)
    with open_store(store) as s:
        expected = s.manifest
    for offset in rng.integers(0, len(text), 150).tolist():
        damaged = bytearray(text)
        damaged[offset] ^= 1 << int(rng.integers(0, 8))
        path.write_bytes(damaged)
        try:
            with open_store(store) as s:
                assert s.manifest == expected
        except (StoreError, ModelError):
            continue


@pytest.mark.parametrize(
    "name", ["manifest.json", "layer-00.safetensors", "resident.safetensors", "embeddings.safetensors"]
)
@pytest.mark.parametrize("keep", [0.0, 0.5, 0.99])
def test_a_truncated_file_is_named(store: Path, name: str, keep: float) -> None:
    """An interrupted copy is the commonest damage of all."""
    path = store / name
    path.write_bytes(path.read_bytes()[: int(keep * path.stat().st_size)])
    with pytest.raises(StoreError, match=name):
        open_store(store)


def test_a_file_truncated_after_opening_is_named(store: Path) -> None:
    """A read that comes back short must not leave old bytes in the buffer as weights."""
    with open_store(store) as s:
        os.truncate(store / "layer-00.safetensors", 8192)
        run = SliceRun(0, FULL, 0, 4)
        with pytest.raises(StoreError, match=r"layer-00\.safetensors is truncated: layer 0, full fidelity"):
            s.read(run, np.empty(s.run_bytes(run), np.uint8))


@pytest.mark.parametrize(
    "name", ["manifest.json", "layer-01.safetensors", "head.safetensors", "tokenizer.json"]
)
def test_a_missing_file_is_named(store: Path, name: str) -> None:
    """The message must tell which file to look for."""
    (store / name).unlink()
    with pytest.raises(StoreError, match=name):
        open_store(store)
    with pytest.raises(StoreError, match=name):
        verify(store)


def test_a_newer_manifest_says_which_version_is_read(store: Path) -> None:
    """A store from a newer pliant may mean other things by the same fields."""
    path = store / "manifest.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps({"format": content["format"], "version": VERSION + 1, "news": []}))
    with pytest.raises(
        StoreError, match=rf"version {VERSION + 1}, this pliant reads up to version {VERSION}"
    ):
        open_store(store)


def test_a_store_of_an_older_version_asks_to_be_packed_again(store: Path) -> None:
    """Its planes stand in another order: read as today's they would be another model's weights."""
    path = store / "manifest.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps({"format": content["format"], "version": 1, "layers": []}))
    with pytest.raises(StoreError, match=rf"format version 1, .* to {VERSION}: pack the model again"):
        open_store(store)


def test_a_directory_that_is_no_store_says_what_to_do(tmp_path: Path) -> None:
    """The first thing a new user meets."""
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(StoreError, match=r"not a store.*pliant pack"):
            open_store(path)


def test_an_existing_store_is_kept_unless_overwriting_is_asked_for(model: Path, store: Path) -> None:
    """A store may be hours of importance away from being built again."""
    checkpoint = open_checkpoint(model)
    before = (store / "manifest.json").read_bytes()
    with pytest.raises(StoreError, match="exists"):
        build(checkpoint, store)
    assert (store / "manifest.json").read_bytes() == before
    build(checkpoint, store, "equal-population", overwrite=True)
    with open_store(store) as s:
        assert s.manifest.quantizer == "equal-population"
    assert [p.name for p in store.parent.iterdir()] == ["store"]


def test_overwriting_spares_what_is_no_store(model: Path, tmp_path: Path) -> None:
    """A mistyped path must not cost a directory of something else."""
    precious = tmp_path / "documents"
    precious.mkdir()
    (precious / "thesis.txt").write_text("…")
    with pytest.raises(StoreError, match="is not a store"):
        build(open_checkpoint(model), precious, overwrite=True)
    assert (precious / "thesis.txt").exists()


class _FullDisk(io.FileIO):
    """A file on a disk with room for `room` more bytes."""

    def __init__(self, path: Path, room: list[int]) -> None:
        super().__init__(path, "xb")
        self.room = room

    def write(self, data: object) -> int:
        self.room[0] -= memoryview(data).nbytes  # type: ignore[arg-type]
        if self.room[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(data)  # type: ignore[arg-type]


@pytest.mark.parametrize("room", [0, 5_000, 100_000, 200_000])
def test_a_disk_that_fills_up_leaves_nothing(model: Path, tmp_path: Path, room: int) -> None:
    """Half a store that opens would answer wrongly."""
    left = [room]

    def open_file(path: Path) -> IO[bytes]:
        return _FullDisk(path, left)  # type: ignore[return-value]

    with pytest.raises(StoreError, match="No space left on device"):
        build(open_checkpoint(model), tmp_path / "store", open_file=open_file)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of half of what the tiny store needs."""
    place = tmp_path / "small"
    place.mkdir()
    size = layer_layout(tiny_spec()).n_bytes
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)]
    if (
        os.geteuid() != 0
        or not shutil.which("mount")
        or subprocess.run(command, capture_output=True).returncode
    ):
        pytest.skip("mounting a small tmpfs takes root")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_disk_too_small_is_refused_before_work_begins(model: Path, small_disk: Path) -> None:
    """Quantizing for a minute to fail at the last file helps nobody."""
    with pytest.raises(StoreError, match=r"need \d.*MB, but only"):
        build(open_checkpoint(model), small_disk / "store")
    assert list(small_disk.iterdir()) == []


@pytest.mark.parametrize("when", [1, 3])
def test_a_kill_while_building_leaves_nothing_that_opens(model: Path, tmp_path: Path, when: int) -> None:
    """kill -9 runs no handler, only the rename protects: `when` 3 is between manifest and rename."""
    out = tmp_path / "store"
    child = subprocess.Popen(
        [sys.executable, "-c", BUILD, str(model), str(out), str(when)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"reached\n"
        child.send_signal(signal.SIGKILL)
    (left,) = tmp_path.iterdir()
    for path in (out, left):
        with pytest.raises(StoreError):
            open_store(path)
    build(open_checkpoint(model), out)
    assert list(tmp_path.iterdir()) == [out]
    read_all(out)


def test_a_store_set_aside_by_a_killed_overwrite_comes_back(model: Path, store: Path) -> None:
    """Between an overwrite's two renames the old store has another name, but it is not lost."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    store.rename(store.parent / f".store.replaced-{gone.pid}")
    with pytest.raises(StoreError, match="exists"):
        build(open_checkpoint(model), store)
    read_all(store)


def test_a_builder_spares_the_store_that_another_thread_is_building(model: Path, tmp_path: Path) -> None:
    """Both have one process number, as the first process of every container has."""
    checkpoint, out = open_checkpoint(model), tmp_path / "store"
    others: list[threading.Thread] = []

    def build_beside(_: BuildProgress) -> None:
        if not others:
            others.append(threading.Thread(target=build, args=(checkpoint, out)))
            others[0].start()
            others[0].join()

    build(checkpoint, out, on_progress=build_beside)
    read_all(out)
    assert list(tmp_path.iterdir()) == [out]


def test_a_builder_spares_the_store_that_another_process_is_building(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process of another container, which this one cannot see, and whose number says nothing."""

    def unseen(*_: object) -> None:
        raise ProcessLookupError

    out = tmp_path / "store"
    child = subprocess.Popen(
        [sys.executable, "-c", BUILD, str(model), str(out), "1"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"reached\n"
        with monkeypatch.context() as patch:
            patch.setattr(os, "kill", unseen)
            build(open_checkpoint(model), out)
        read_all(out)
        child.communicate()
    assert child.returncode == 0
    read_all(out)
    assert list(tmp_path.iterdir()) == [out]


def test_a_failed_overwrite_keeps_the_old_store(model: Path, store: Path) -> None:
    """The old store is worth more than the room it takes."""
    with pytest.raises(StoreError, match="No space"):
        build(
            open_checkpoint(model),
            store,
            overwrite=True,
            open_file=lambda path: _FullDisk(path, [9000]),  # type: ignore[arg-type, return-value]
        )
    read_all(store)
    assert [p.name for p in store.parent.iterdir()] == ["store"]


def test_a_checkpoint_without_tokenizer_is_refused(tiny_model: object, tmp_path: Path) -> None:
    """A store that cannot read text is no use, and must be refused while it can be helped."""
    model = tmp_path / "model"
    shutil.copytree(tiny_model(), model)  # type: ignore[operator]
    checkpoint = open_checkpoint(model)
    (model / "tokenizer.json").unlink()
    with pytest.raises(StoreError, match=r"tokenizer\.json cannot be read"):
        build(checkpoint, tmp_path / "store")
    assert not (tmp_path / "store").exists()
