"""What a device is said to do with a model."""

from collections.abc import Iterator
from functools import cache, partial

import pytest

from pliant.cluster.member.measure_member import measure_member
from pliant.cluster.member.shard import ModelShards, Shard
from pliant.errors import InputError
from pliant.ir.capability import ClusterCost, Interface, Links
from pliant.ir.cost import latency, simulate
from pliant.ir.dilation import Dilation
from pliant.ir.partition import Partition, Share
from pliant.ir.program import Compute
from pliant.kernels.emit.isa import host_isa
from pliant.kernels.runtime.jit import Library
from pliant.kernels.runtime.thread_pool import ThreadPool
from pliant.plan.split.split_program import split
from pliant.plan.split.stage_graphs import work_flops
from pliant.run.emulated_device import EmulatedDevice
from tests.cluster.sources import RandomSource, random_source
from tests.models.encoder.test_encoder_parts import SPECS
from tests.plan.splits import MODES, partition

_TOKENS = 24
_FLOP_S, _CALL_S = 1e-10, 5e-6
_MANY_BYTES = 1 << 30


class _Timed:
    """A clock that moves by what stages take on a device of 10 GFLOP/s whose every call costs 5 µs."""

    def __init__(self, source: RandomSource, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = self.slept_s = 0.0
        real = Shard.compute
        counted = cache(partial(work_flops, source.spec))

        def compute(shard: Shard, step: int, work: Compute, lengths: tuple[int, ...] = ()) -> None:
            real(shard, step, work)
            self.now_s += _CALL_S + _FLOP_S * counted(shard.partition)(work)

        monkeypatch.setattr(Shard, "compute", compute)

    def clock(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.slept_s += seconds


@pytest.fixture(scope="module")
def library() -> Library:
    return Library(host_isa())


@pytest.fixture(scope="module")
def pool(library: Library) -> Iterator[ThreadPool]:
    with ThreadPool(1, library) as pool:
        yield pool


@pytest.mark.parametrize("name", SPECS)
def test_every_kind_of_stage_is_measured_from_small_to_whole(
    name: str, library: Library, pool: ThreadPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Curves give back the times of the device, at sizes that were not measured too; eq. 5 agrees."""
    source = random_source(SPECS[name])
    timed = _Timed(source, monkeypatch)
    device = measure_member(source, _TOKENS, library, pool, _MANY_BYTES, clock=timed.clock, waited=dict)
    assert 0 < timed.now_s < 1.0
    assert device.free_bytes == _MANY_BYTES
    assert device.call_s == pytest.approx(_CALL_S, rel=0.1)
    for curve in device.curves:
        low, high = curve.points[0][0], curve.points[-1][0]
        between = ((low + high) / 2, 2 * high) if low < high else ()
        for flops in (low, high, *between):
            assert device.seconds(curve.kind, flops) == pytest.approx(_CALL_S + _FLOP_S * flops, rel=1e-6)
    largest = max(flops for curve in device.curves for flops, _ in curve.points)
    per_flop_s = device.cycles_per_flop / device.frequency_Hz
    assert _FLOP_S < per_flop_s < _FLOP_S + 5 * _CALL_S / largest


@pytest.mark.parametrize("name", SPECS)
def test_no_stage_of_a_split_model_is_without_a_curve(name: str, library: Library, pool: ThreadPool) -> None:
    """`simulate` would price it by its products alone, and a norm has none."""
    source = random_source(SPECS[name])
    ends = ModelShards("d0", source, library, pool)
    device = measure_member(source, _TOKENS, library, pool, _MANY_BYTES, ends=ends, seconds=0.01)
    kinds = {curve.kind for curve in device.curves}
    for mode in MODES:
        p = partition(source.spec, mode, 4, _TOKENS, 11)
        flops = work_flops(source.spec, p)
        works = [step.work for step in split(source.spec, p).steps if isinstance(step.work, Compute)]
        assert {work.kernel for work in works if flops(work) > 0} <= kinds
        links = Links({name: Interface(1e8, 1e8) for name in p.devices})
        spans = simulate(split(source.spec, p), ClusterCost(dict.fromkeys(p.devices, device), links, flops))
        assert max(span.end_s for span in spans) > 0


def test_a_primary_measures_its_ends(
    library: Library, pool: ThreadPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are part of every run; the prediction of a device alone is the time of all its stages."""
    source = random_source(SPECS["post-norm"])
    timed = _Timed(source, monkeypatch)
    ends = ModelShards("d0", source, library, pool)
    device = measure_member(
        source, _TOKENS, library, pool, _MANY_BYTES, ends=ends, clock=timed.clock, waited=dict
    )
    assert ends.end_bytes == 0, "these have no weights"
    share = Share("d0", source.spec.n_heads, _TOKENS)
    p = Partition("ws", "d0", (share,), _TOKENS)
    flops = work_flops(source.spec, p)
    works = [step.work for step in split(source.spec, p).steps]
    assert [work.kernel for work in (works[0], works[-1]) if isinstance(work, Compute)] == ["input", "head"]
    spans = simulate(split(source.spec, p), ClusterCost({"d0": device}, Links({}), flops))
    wanted_s = sum(_CALL_S + _FLOP_S * flops(work) for work in works if isinstance(work, Compute))
    assert latency(spans) == pytest.approx(wanted_s, rel=1e-6)


def test_dilation_is_noted_and_the_core_sleeps_as_in_a_run(
    library: Library, pool: ThreadPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A core that slept is slower for a while; sixteen devices that measure at once leave room to others."""
    source = random_source(next(iter(SPECS.values())))
    timed = _Timed(source, monkeypatch)
    device = measure_member(
        source,
        _TOKENS,
        library,
        pool,
        _MANY_BYTES,
        emulated=EmulatedDevice(Dilation(4.0), sleep=timed.sleep),
        clock=timed.clock,
        waited=dict,
    )
    assert device.dilation == Dilation(4.0)
    assert timed.slept_s == pytest.approx(3 * timed.now_s)
    kind, flops = device.curves[0].kind, device.curves[0].points[-1][0]
    assert device.seconds(kind, flops) == pytest.approx(4 * (_CALL_S + _FLOP_S * flops), rel=1e-6)


def test_little_memory_is_not_filled_by_measuring(library: Library, pool: ThreadPool) -> None:
    """A whole layer is not packed where it takes more than a quarter of what is free; rates still come."""
    source = random_source(next(iter(SPECS.values())))
    whole = measure_member(source, _TOKENS, library, pool, _MANY_BYTES, seconds=0.01)
    little = measure_member(source, _TOKENS, library, pool, 10_000, seconds=0.01)
    most = {curve.kind: curve.points[-1][0] for curve in whole.curves}
    assert little.curves
    assert all(curve.points[-1][0] < most[curve.kind] for curve in little.curves if curve.kind == "attend")


def test_a_length_the_model_has_not_is_refused(library: Library, pool: ThreadPool) -> None:
    """Before anything is compiled."""
    source = random_source(next(iter(SPECS.values())))
    with pytest.raises(InputError, match="too many for this model"):
        measure_member(source, source.spec.max_rows + 1, library, pool, _MANY_BYTES)
