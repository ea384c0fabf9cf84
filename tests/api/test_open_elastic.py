"""`pliant.open` and what stands behind it."""

import errno
import gc
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import pliant
from pliant.api import open_elastic as api
from pliant.api.resolve import resolve, shipped_models
from pliant.errors import BudgetError, InputError, ModelError, ProfileError, StoreError
from pliant.ir.device import DeviceProfile
from pliant.kernels.emit.isa import X86_64
from pliant.models.hf.checkpoint import open_checkpoint
from pliant.profile import measure_device
from pliant.profile.measure_device import ProfileProgress
from pliant.run.process_memory import MemoryBudget
from pliant.run.submodel.plans.submodel_planner import SessionOptions
from pliant.store import atomic_directory
from pliant.store.build import build
from pliant.store.read import open_store
from tests.run.conftest import paper_profile


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def model(tiny_model: Callable[..., Path]) -> Path:
    return tiny_model("bert", widths=(2, 4))


def test_importing_pliant_loads_nothing_heavy() -> None:
    """A command line and a server start with it: the issue allows 0.3 s and none of the extras."""
    script = (
        "import sys, pliant; pliant.__version__; "
        "print([m for m in ('torch','transformers','matplotlib','llvmlite','numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_opening_loads_no_extra(model: Path, cache: Path) -> None:
    """The core dependencies must do: no torch, transformers or matplotlib comes in by a side door."""
    script = (
        f"import sys, pliant\nfrom pathlib import Path\nwith pliant.open({str(model)!r}, latency='5s', "
        f"cache=Path({str(cache)!r})) as m: m('a good film')\n"
        "print([m for m in ('torch','transformers','matplotlib') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_directory_is_packed_and_profiled_once(model: Path, cache: Path, tmp_path: Path) -> None:
    """The second opening must not do again what took the first one seconds."""
    told: list[str] = []
    for _ in range(2):
        told.clear()
        with pliant.open(
            model,
            latency="60s",
            preload="1MB",
            cache=tmp_path,
            on_progress=lambda what, i, n: told.append(what),
        ) as session:
            assert session("a good film").met
    assert told == []
    assert len(list((tmp_path / "stores").iterdir())) == 1
    assert len(list((tmp_path / "profiles").iterdir())) == 1


def test_a_session_that_nobody_closes_ends_with_its_last_name(model: Path, cache: Path) -> None:
    """A notebook's cell opens its model each time it runs, under the same name."""
    with pliant.open(model, latency="60s", cache=cache) as session:  # what the process opens once
        session("a good film")
    del session
    gc.collect()
    before = threading.active_count(), len(os.listdir("/proc/self/fd"))
    threads = set(threading.enumerate())
    session = pliant.open(model, latency="60s", cache=cache)
    session("a good film")
    own = set(threading.enumerate()) - threads
    assert own
    del session
    gc.collect()
    for thread in own:
        thread.join(30)
    assert (threading.active_count(), len(os.listdir("/proc/self/fd"))) == before


def test_a_kept_profile_of_another_format_is_measured_again_and_the_user_told(
    model: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten seconds at a start that had none yesterday need a reason. The measuring itself is a stand-in."""
    measured = paper_profile((2, 4))

    def measure(*_: object, on_progress: Callable[[ProfileProgress], None], **__: object) -> DeviceProfile:
        on_progress(ProfileProgress(1, 1))
        return measured

    monkeypatch.setattr(api, "measure_device", measure)
    told: list[str] = []

    def profile() -> DeviceProfile:
        return api.profile_of(store, tmp_path, 1, on_progress=lambda what, done, total: told.append(what))

    with api.open_packed_store(resolve(model), cache) as store:
        assert profile() == measured
        (kept,) = (tmp_path / "profiles").iterdir()
        kept.write_text(json.dumps(json.loads(kept.read_text()) | {"version": 99}))
        assert profile() == profile() == measured
    first, again = told
    assert first == "profiling this device"
    assert "it has format 99" in again


def test_a_profile_of_a_few_lengths_is_one_of_all_inputs(model: Path, cache: Path, tmp_path: Path) -> None:
    """It replaces the device's profile: without the limit, longer inputs would be planned as these."""
    how = api.MeasurementOptions(lengths=(4, 8), seconds=0.05)
    with api.open_packed_store(resolve(model), cache) as store:
        assert api.profile_of(store, tmp_path, 1, measurement=how).lengths == (4, 8, store.spec.max_tokens)
        assert api.profile_of(store, tmp_path, 1).lengths == (4, 8, store.spec.max_tokens)
        with pytest.raises(ProfileError, match="not within"):
            api.profile_of(store, tmp_path, 1, measurement=replace(how, lengths=()))


def test_other_planes_kernels_or_disks_have_a_profile_of_their_own(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One measured by a store of two planes says nothing of decoding six; a stand-in measures."""
    measured: list[int] = []

    def measure(*_: object, **__: object) -> DeviceProfile:
        measured.append(len(measured))
        return replace(paper_profile((2, 4)), memory_bytes=measured[-1])

    def profile(path: Path) -> int:
        with open_store(path) as store:
            return api.profile_of(store, tmp_path, 1).memory_bytes

    monkeypatch.setattr(api, "measure_device", measure)
    checkpoint = open_checkpoint(model)
    few, every = build(checkpoint, tmp_path / "few", bits=(1, 2)), build(checkpoint, tmp_path / "every")
    for _ in range(2):
        assert (profile(few), profile(every)) == (0, 1)
    monkeypatch.setattr(measure_device, "host_isa", lambda: X86_64)
    assert profile(every) == profile(every) == 2
    monkeypatch.setattr(measure_device, "disk_name", lambda path: "another disk")
    assert profile(every) == profile(every) == 3
    assert len(list((tmp_path / "profiles").iterdir())) == 4


def test_a_profile_of_a_busy_machine_is_measured_again_on_a_quiet_one(
    model: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kept for a while, as the other processes may be there for good, and replaced when they are gone."""
    shares = iter((0.4, 0.0))
    monkeypatch.setattr(
        api, "measure_device", lambda *_, **__: replace(paper_profile((2, 4)), disturbed=next(shares))
    )
    pressure = 0.5
    monkeypatch.setattr(api, "cpu_pressure", lambda: pressure)

    def share() -> float:
        return api.profile_of(store, tmp_path, 1).disturbed

    with api.open_packed_store(resolve(model), cache) as store:
        assert share() == share() == 0.4
        pressure = 0.0
        assert share() == 0.4
        (kept,) = (tmp_path / "profiles").iterdir()
        os.utime(kept, (0, kept.stat().st_mtime - 3600))
        pressure = 0.5
        assert share() == 0.4
        pressure = 0.0
        assert share() == share() == 0.0


def test_a_device_at_another_clock_rate_is_measured_or_reckoned_from_those_around(
    model: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T_comp(l, m, freq): each rate is measured once, and none that lies between two. A stand-in measures."""
    rates: list[float] = []

    def measure(*_: object, **__: object) -> DeviceProfile:
        rates.append(now_Hz)
        return replace(paper_profile((2, 4)), frequency_Hz=now_Hz)

    monkeypatch.setattr(api, "measure_device", measure)
    monkeypatch.setattr(api, "frequency_limit", lambda: now_Hz)
    with api.open_packed_store(resolve(model), cache) as store:
        for now_Hz in (1e9, 3e9, 1e9, 2e9, 2.4e9):
            assert api.profile_of(store, tmp_path, 1).frequency_Hz == now_Hz
    assert rates == [1e9, 3e9]


def test_a_model_that_changed_is_packed_again(
    tiny_model: Callable[..., Path], cache: Path, tmp_path: Path
) -> None:
    """A directory fine-tuned further under the same name must not answer with its old weights."""
    copy = tmp_path / "m"
    shutil.copytree(tiny_model("bert"), copy)
    with api.open_packed_store(resolve(copy), cache) as store:
        before = store.path
    weights = (copy / "model.safetensors").read_bytes()
    (copy / "model.safetensors").write_bytes(weights)  # a new time is enough
    with api.open_packed_store(resolve(copy), cache) as store:
        assert store.path != before


def test_a_cut_store_in_the_cache_is_packed_again(model: Path, tmp_path: Path) -> None:
    """A cache may lose bytes; what can be made anew is not an error."""
    with api.open_packed_store(resolve(model), tmp_path) as store:
        file = store.path / "layer-00.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with api.open_packed_store(resolve(model), tmp_path) as store:
        assert store.manifest.n_bytes > 0


def test_two_threads_pack_a_model_once(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node opens its models on several threads; the second waits for the first one's store."""
    at_packing, open_model, told = threading.Event(), api.open_checkpoint, []
    paths: list[Path] = []

    def opened(directory: Path) -> object:
        if threading.current_thread() is second:
            at_packing.set()
        return open_model(directory)

    def open_second() -> None:
        with api.open_packed_store(resolve(model), tmp_path, lambda *what: told.append(what)) as store:
            paths.append(store.path)

    def start_second(*_: object) -> None:
        if not at_packing.is_set():
            second.start()
            at_packing.wait()

    second = threading.Thread(target=open_second)
    monkeypatch.setattr(api, "open_checkpoint", opened)
    with api.open_packed_store(resolve(model), tmp_path, start_second) as store:
        second.join()
        assert paths == [store.path]
    assert told == []
    assert list((tmp_path / "stores").iterdir()) == paths


def test_a_store_given_by_name_is_used_where_it_lies(model: Path, cache: Path, tmp_path: Path) -> None:
    """Packing is for sources; a store is one already."""
    out = build(open_checkpoint(model), tmp_path / "store")
    with pliant.open(out, latency=5.0, cache=cache) as session:
        assert session.store.path == out


def test_profiles_may_be_given(model: Path, cache: Path, tmp_path: Path) -> None:
    """A profile made elsewhere stands in for measuring: nothing is kept."""
    with api.open_packed_store(resolve(model), cache) as store:
        profile = api.profile_of(store, cache, 2)
    with pliant.open(model, latency="5s", threads=2, profile=profile, cache=tmp_path) as session:
        assert session.device == profile
    assert not (tmp_path / "profiles").exists()


def test_what_plan_of_says_is_what_a_session_does(model: Path, cache: Path) -> None:
    """`pliant plan` opens no session; its plan must be the one that runs."""
    with pliant.open(model, latency="5s", preload="4KB", cache=cache) as session:
        planned = api.plan_of(session.store, session.device, session.options)
        assert (planned.bits, planned.held, planned.latency_s) == (
            session.plan.bits,
            session.plan.held,
            session.plan.latency_s,
        )


def test_sessions_share_a_memory_budget(model: Path, cache: Path) -> None:
    """Several models in one process stay under one total."""
    with MemoryBudget(1000) as memory, pytest.raises(BudgetError):
        pliant.open(model, latency="5s", memory=memory, cache=cache)


def test_bad_requests_say_what_is_wrong(model: Path, cache: Path) -> None:
    """One tree of errors, each naming its value."""
    with pytest.raises(InputError, match="soon"):
        pliant.open(model, latency="soon", cache=cache)
    with pytest.raises(BudgetError, match="needs"):
        pliant.open(model, latency="1us", cache=cache)
    with pytest.raises(ModelError, match="no-such"):
        pliant.open("./no-such-model", latency="1s", cache=cache)


def test_the_shipped_model_is_found_by_name() -> None:
    """`sst2` needs no path, and a directory with that name but no model in it does not hide it."""
    if "sst2" not in shipped_models():
        pytest.skip("this tree holds no shipped model")
    assert (resolve("sst2").path / "model.safetensors").is_file()


def test_a_directory_may_bring_its_importance(tiny_model: Callable[..., Path], tmp_path: Path) -> None:
    """The shipped model does: its plans raise the shards that matter from the first run on."""
    copy = tmp_path / "m"
    shutil.copytree(tiny_model("bert"), copy)
    (copy / "importance.json").write_text("[[1, 2, 3, 4], [0.5, 0, 0, 0]]")
    with api.open_packed_store(resolve(copy), tmp_path / "cache") as store:
        assert store.manifest.importance == ((1, 2, 3, 4), (0.5, 0, 0, 0))
    (copy / "importance.json").write_text("[[1, 2, 3, 4]]")
    with pytest.raises(InputError, match=r"importance\.json needs 2 rows of 4"):
        api.open_packed_store(resolve(copy), tmp_path / "cache")


def test_a_directory_may_bring_its_accuracy(tiny_model: Callable[..., Path], tmp_path: Path) -> None:
    """The shipped model does: its plans choose the most accurate submodel from the first run on."""
    copy = tmp_path / "m"
    shutil.copytree(tiny_model("bert"), copy)
    entry = '{"n": 2, "m": 4, "bits": %d, "accuracy": 0.75, "log_likelihood": -0.5}'
    (copy / "accuracy.json").write_text(f'{{"n_examples": 8, "entries": [{entry % 6}]}}')
    with api.open_packed_store(resolve(copy), tmp_path / "cache") as store:
        assert store.manifest.accuracy is not None
        assert store.manifest.accuracy.entries[0].accuracy == 0.75
    for text in ("[]", f'{{"n_examples": 8, "entries": [{entry % 7}]}}'):
        (copy / "accuracy.json").write_text(text)
        with pytest.raises(InputError, match=r"accuracy\.json is not a table of accuracy"):
            api.open_packed_store(resolve(copy), tmp_path / "cache")


def test_a_store_is_never_kept_without_its_accuracy(
    tiny_model: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An open that ended right after the store had its name: the next one must not use half of it."""
    copy = tmp_path / "m"
    shutil.copytree(tiny_model("bert"), copy)
    entry = '{"n": 2, "m": 4, "bits": 6, "accuracy": 0.75, "log_likelihood": -0.5}'
    (copy / "accuracy.json").write_text(f'{{"n_examples": 8, "entries": [{entry}]}}')
    (copy / "importance.json").write_text("[[1, 2, 3, 4], [0.5, 0, 0, 0]]")
    sync = atomic_directory.sync_directory

    def sync_or_fail(directory: Path) -> None:
        if directory.name == "stores":  # the store has its name already
            raise OSError(errno.ENOSPC, "No space left on device")
        sync(directory)

    with monkeypatch.context() as patch:
        patch.setattr(atomic_directory, "sync_directory", sync_or_fail)
        with pytest.raises(StoreError, match="No space"):
            api.open_packed_store(resolve(copy), tmp_path / "cache")
    with api.open_packed_store(resolve(copy), tmp_path / "cache") as store:
        assert store.manifest.accuracy is not None
        assert store.manifest.importance is not None


def test_the_shipped_models_accuracy_covers_every_submodel() -> None:
    """A submodel that is not in the grid is chosen only when nothing else is in reach."""
    if "sst2" not in shipped_models():
        pytest.skip("this tree holds no shipped model")
    directory = resolve("sst2").path
    spec = open_checkpoint(directory).spec
    table = api.read_accuracy(directory / "accuracy.json", spec)
    bits = {e.bits for e in table.entries}
    assert {2, 6, 32} <= bits
    assert len(table.entries) == spec.n_layers * len(spec.widths) * len(bits)


@pytest.mark.parametrize("baseline", ["load-exec", "stdpl-2", "preload-6"])
def test_the_plan_of_a_baseline_counts_the_memory_of_its_session(
    model: Path, cache: Path, baseline: api.BaselineName
) -> None:
    """Its page said 0 bytes of activations, and nothing of the embeddings."""
    profile, options = paper_profile((2, 4)), SessionOptions(60.0, length=8)
    with api.open_packed_store(resolve(model), cache) as store:
        plan = api.plan_of(store, profile, options, baseline)
        with api.open_elastic(
            resolve(model), options, profile=profile, baseline=baseline, cache=cache
        ) as session:
            assert plan.memory == session.plan.memory
        assert plan.memory.arena_bytes > 0
        assert plan.memory.fixed_bytes > 0
        assert "in all" in str(plan)


@pytest.mark.parametrize("limits", [{"working_bytes": 4096}, {"memory_bytes": 100_000}])
def test_a_baseline_beyond_its_limits_is_refused(model: Path, cache: Path, limits: dict[str, int]) -> None:
    """A comparison at equal memory must not be won by a system that ignores the limit."""
    baselines: tuple[api.BaselineName, ...] = ("load-exec", "stdpl-32")
    with api.open_packed_store(resolve(model), cache) as store:
        for baseline in baselines:
            options = SessionOptions(60.0, length=8, **limits)  # type: ignore[arg-type]
            with pytest.raises(BudgetError, match="at least"):
                api.plan_of(store, paper_profile((2, 4)), options, baseline)
