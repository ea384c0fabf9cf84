"""Guard: files that released versions of pliant wrote are read, and answer as they did.

Protects what users keep: stores, compiled directories, recurrent directories, profiles, measured times, keys,
tables of importance and accuracy, and the models that `random:CONFIG:SEED` names. There is no store of a
single file. The fixtures in tests/fixtures/formats are never changed. A version that can no longer read one
says so with the next move, in the error and in CHANGELOG.md, and only then its test goes. A new version of a
format gets a folder of its own: `python -m tests.fixtures.formats.make v0_2`.
"""

import json
import platform
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import pliant
from pliant.api.open_elastic import read_accuracy, read_importance
from pliant.cluster.net.key import read_key
from pliant.compiler.aot import compiled_directory as saved
from pliant.errors import KernelError, StoreError
from pliant.profile.form_costs import CostFile
from pliant.profile.profile_cache import load_profile, profile_json
from pliant.store import manifest as store_manifest
from pliant.store.read import open_store
from pliant.store.store_files import verify
from tests.fixtures.formats.models import ACCURACY, FEEDS, IMPORTANCE, TEXT, random_models, store_answers
from tests.fixtures.formats.versions import HERE, released

TOLERANCE = 2e-4  # sums in another order, on another CPU, of numbers near 1
MACHINES = {"x86-64": ("x86_64", "AMD64"), "aarch64": ("aarch64", "arm64")}

versions = pytest.mark.parametrize("version", released("answers.json"))


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """`unpacked(version, form)` is a folder as that version wrote it; do not write into it."""
    root = tmp_path_factory.mktemp("formats")

    def folder(version: str, form: str) -> Path:
        path = root / version / form
        if not path.is_dir():
            with tarfile.open(HERE / version / f"{form}.tar.xz") as archive:
                archive.extractall(path, filter="data")
        return path

    return folder


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def _answers(version: str) -> Any:
    return json.loads((HERE / version / "answers.json").read_text())


def test_there_are_fixtures() -> None:
    """A folder that was renamed would leave nothing to test."""
    assert "v0_1" in released("answers.json")
    assert "v0_1" in released("messages.json")


@versions
def test_a_store_answers_as_it_did_at_every_bitwidth(
    version: str, unpacked: Callable[[str, str], Path], cache: Path
) -> None:
    """At 2 and 6 bits and full fidelity, under the profile that was kept beside it."""
    store, wanted = unpacked(version, "store"), _answers(version)["store"]
    verify(store)
    profile = load_profile(HERE / version / "profile.json")
    assert profile is not None
    found = store_answers(store, profile, cache)
    assert found.pop("identity") == wanted.pop("identity")
    assert found.keys() == wanted.keys()
    for name, answer in wanted.items():
        assert found[name]["bits"] == answer["bits"]
        np.testing.assert_allclose(found[name]["logits"], answer["logits"], atol=TOLERANCE)


@versions
def test_a_store_keeps_its_tables(version: str, unpacked: Callable[[str, str], Path]) -> None:
    """Without importance and accuracy it would plan otherwise."""
    with open_store(unpacked(version, "store")) as store:
        assert _plain(store.manifest.importance) == IMPORTANCE
        assert _plain(store.manifest.accuracy) == ACCURACY


def test_a_store_of_format_2_is_the_store_of_format_3(
    unpacked: Callable[[str, str], Path], tmp_path: Path
) -> None:
    """The manifest that the last code of format 2 wrote for the same model; the other files are the same."""
    new = unpacked("v0_1", "store")
    old = Path(shutil.copytree(new, tmp_path / "store"))
    shutil.copy(HERE / "v0_1" / "manifest-2.json", old / "manifest.json")
    with open_store(old) as before, open_store(new) as after:
        assert before.manifest.version == 2
        assert (before.identity, before.spec) == (after.identity, after.spec)
        assert before.manifest.layers == after.manifest.layers
        assert before.manifest.accuracy is not None
        assert before.manifest.accuracy.folds == ()
    verify(old)


@pytest.mark.parametrize(
    ("number", "says"),
    [
        (store_manifest.VERSION + 1, "reads up to version .* update pliant"),
        (store_manifest.OLDEST_VERSION - 1, "pack the model again with `pliant pack`"),
    ],
)
def test_a_store_of_another_format_is_refused_with_the_next_move(
    number: int, says: str, unpacked: Callable[[str, str], Path], tmp_path: Path
) -> None:
    """One from the future must not be taken for a damaged one."""
    store = Path(shutil.copytree(unpacked("v0_1", "store"), tmp_path / "store"))
    path = store / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"version": number, "added": [1]}))
    with pytest.raises(StoreError, match=says):
        open_store(store)


@versions
@pytest.mark.parametrize("target", MACHINES)
def test_a_compiled_directory_answers_on_its_cpu_and_is_refused_on_others(
    version: str, target: str, unpacked: Callable[[str, str], Path]
) -> None:
    """It holds machine code, compiled without any extension, so that every CPU of its kind runs it."""
    path = unpacked(version, f"compiled-{target}")
    if platform.machine() not in MACHINES[target]:
        with pytest.raises(KernelError, match=rf"was compiled for {target}.*, which this CPU .* --target"):
            pliant.load(path, threads=1)
        return
    with pliant.load(path, threads=1) as session:
        found = session.run(FEEDS)["y"]
    np.testing.assert_allclose(found, _answers(version)["compiled"], atol=TOLERANCE)


@pytest.mark.parametrize("step", [-1, 1])
def test_a_compiled_directory_of_another_format_is_refused_with_the_next_move(
    step: int, unpacked: Callable[[str, str], Path], tmp_path: Path
) -> None:
    """It can be made again from the model, so no other format is read: the error says to do so."""
    path = Path(shutil.copytree(unpacked("v0_1", "compiled-x86-64"), tmp_path / "compiled"))
    program = path / saved.PROGRAM
    number = saved.VERSION + step
    program.write_text(json.dumps(json.loads(program.read_text()) | {"version": number}))
    with pytest.raises(
        StoreError, match=f"has version {number}, .*reads version .*; compile the model again"
    ):
        pliant.load(path, threads=1)


@versions
def test_a_recurrent_directory_answers_as_it_did(
    version: str, unpacked: Callable[[str, str], Path], cache: Path
) -> None:
    """Half-precision weights of a two-way LSTM of two layers, and its words."""
    wanted = _answers(version)["recurrent"]
    model = pliant.open(unpacked(version, "recurrent"), threads=1, cache=cache)
    assert model.identity == wanted["identity"]
    np.testing.assert_allclose(model(TEXT).logits, wanted["logits"], atol=TOLERANCE)
    model.close()


@versions
def test_a_profile_is_read_whole_and_what_it_does_not_know_is_ignored(version: str, tmp_path: Path) -> None:
    """Every number of the file is in what was read; a later version may add more."""
    path = HERE / version / "profile.json"
    profile, kept = load_profile(path), json.loads(path.read_text())
    assert profile is not None
    assert _holds(json.loads(profile_json(profile)), kept)
    later = tmp_path / "later.json"
    later.write_text(json.dumps(kept | {"added": {"x": 1}}))
    assert load_profile(later) == profile


@versions
def test_measured_times_and_tables_are_read(version: str, unpacked: Callable[[str, str], Path]) -> None:
    """Times of forms by key, and the tables that a model directory brings."""
    folder = HERE / version
    assert CostFile(folder / "costs.json").load() == _answers(version)["costs"]
    with open_store(unpacked(version, "store")) as store:
        assert _plain(read_importance(folder / "importance.json", store.spec)) == IMPORTANCE
        assert _plain(read_accuracy(folder / "accuracy.json", store.spec)) == ACCURACY


@versions
def test_the_key_of_a_cluster_is_read(version: str, tmp_path: Path) -> None:
    """Its members hold copies of the file for years. This one admits to nothing."""
    path = Path(shutil.copy(HERE / version / "cluster.key", tmp_path / "key"))
    path.chmod(0o600)
    key = read_key(path)
    text = path.read_text()
    assert key.public.decode() in text
    assert key.secret.decode() in text


@versions
def test_random_models_hold_the_numbers_that_they_held(version: str) -> None:
    """Members of a cluster that are of different versions make parts of one model."""
    assert random_models() == _answers(version)["random"]


def _plain(value: object) -> Any:
    return msgspec.json.decode(msgspec.json.encode(value))


def _holds(found: Any, kept: Any) -> bool:
    """Whether all of `kept` is in `found`, at every depth."""
    if isinstance(kept, dict):
        return all(key in found and _holds(found[key], item) for key, item in kept.items())
    if isinstance(kept, list):
        return len(found) == len(kept) and all(map(_holds, found, kept))
    return bool(found == kept)
