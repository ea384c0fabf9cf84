"""Measuring, on a device whose every step takes a known time."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from pliant.errors import ProfileError
from pliant.ir.cost import cost_table
from pliant.models.hf.checkpoint import open_checkpoint
from pliant.models.spec import ModelSpec
from pliant.plan.submodel.prices import layer_seconds
from pliant.profile.measure_device import ProfileProgress, measure_device, subject_name
from pliant.store.build import build
from pliant.store.read import Store, open_store
from pliant.system import waited_s


class Clockwork:
    """A Subject and its clock: a layer takes 1 ms a slice and 10 us a token, nothing else takes time."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.spec: ModelSpec = store.spec
        self.now_s = 0.0
        self.held: np.ndarray | None = None
        self.tokens = 0

    def clock(self) -> float:
        return self.now_s

    def reserve(self, tokens: int, /) -> None:
        self.tokens = tokens

    def hold(self, bits: np.ndarray, /) -> None:
        self.held = bits

    def embed(self, ids: np.ndarray, types: np.ndarray, /) -> None:
        assert len(ids) == len(types) <= self.tokens
        self.now_s += 1e-6 * len(ids)

    def layer(self, layer: int, width: int, n_tokens: int, /) -> None:
        assert 0 <= layer < self.spec.n_layers
        assert n_tokens <= self.tokens
        self.now_s += 1e-3 * width + 1e-5 * n_tokens

    def head(self, n_tokens: int, /) -> object:
        self.now_s += 2e-5
        return None


@pytest.fixture
def device(tiny_model: Callable[..., Path], tmp_path: Path) -> Iterator[Clockwork]:
    checkpoint = open_checkpoint(tiny_model("bert", widths=(2, 4)))
    with open_store(build(checkpoint, tmp_path / "store")) as store:
        yield Clockwork(store)


def test_every_length_and_width_is_timed_exactly(device: Clockwork) -> None:
    """T_comp(l, m) is what plans are made of: the table must hold the step's own time and nothing else."""
    profile = measure_device(device, n_threads=2, seconds=0.01, clock=device.clock, waited=dict)
    assert profile.lengths == (16, 24)
    assert profile.widths == (2, 4)
    for row in profile.layers:
        assert row.alone.median_s == pytest.approx(1e-3 * row.width + 1e-5 * row.length)
        assert row.with_io.p95_s == pytest.approx(row.alone.p95_s)
    assert profile.overhead(24).embed.median_s == pytest.approx(24e-6)
    assert profile.overhead(24).head.median_s == pytest.approx(2e-5)


def test_shards_are_read_in_every_bitwidth(device: Clockwork) -> None:
    """T_io(k) is asked for k = 1..6 and full fidelity (STI 5.2)."""
    profile = measure_device(device, n_threads=2, seconds=0.01)
    assert [r.bits for r in profile.reads] == [1, 2, 3, 4, 5, 6, 32]
    plane_bytes = device.store.geometry.plane_bytes
    assert [r.n_bytes for r in profile.reads[:3]] == [plane_bytes, 2 * plane_bytes, 3 * plane_bytes]
    assert all(r.time.median_s > 0 for r in profile.reads)


def test_layers_decode_the_highest_planes_held(device: Clockwork) -> None:
    """Compute time includes decoding: shards in six bits are the slowest, so they are what is timed."""
    measure_device(device, n_threads=2, seconds=0.01)
    assert device.held is not None
    assert (device.held == 6).all()
    assert device.held.shape == (2, 4)


def test_a_profile_makes_a_cost_table(device: Clockwork) -> None:
    """The planner's door: a real profile must be accepted there at both percentiles."""
    profile = measure_device(device, n_threads=2, seconds=0.01, waited=waited_s)
    for percentile in ("median", "p95"):
        assert layer_seconds(cost_table(profile, 20, percentile), 4, with_io=False) > 0  # type: ignore[arg-type]


def test_progress_ends_at_its_total(device: Clockwork) -> None:
    """A bar that stops short looks like a hang."""
    seen: list[ProfileProgress] = []
    measure_device(device, n_threads=2, seconds=0.01, on_progress=seen.append)
    assert seen[-1].done == seen[-1].total
    assert [p.done for p in seen] == sorted(p.done for p in seen)


@pytest.mark.parametrize(("lengths", "widths"), [((0,), None), ((25,), None), (None, (5,))])
def test_what_the_model_has_not_is_not_measured(
    device: Clockwork, lengths: tuple[int, ...] | None, widths: tuple[int, ...] | None
) -> None:
    """A profile of 25 tokens of a model that reads 24 would be read as a promise."""
    with pytest.raises(ProfileError):
        measure_device(device, n_threads=2, lengths=lengths, widths=widths)


def test_a_failing_read_is_not_lost_in_its_thread(device: Clockwork) -> None:
    """Damage found while compute is timed must reach the caller."""
    from pliant.errors import StoreError

    for file in device.store.path.glob("layer-*.safetensors"):
        data = bytearray(file.read_bytes())
        data[4096:] = bytes(b ^ 255 for b in data[4096:])
        file.write_bytes(data)
    with pytest.raises(StoreError):
        measure_device(device, n_threads=2, seconds=0.01)


def test_shapes_that_run_differently_have_different_names(device: Clockwork) -> None:
    """A profile is found by this name."""
    from dataclasses import replace

    spec = device.spec
    names = {subject_name(spec), subject_name(replace(spec, ffn=128)), subject_name(spec, "int8")}
    assert len(names) == 3
