"""Tiny stores and synthetic device profiles for tests of sessions and engines."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from pliant.ir.device import DeviceProfile, LayerTime, Overhead
from pliant.ir.link import Link
from pliant.ir.times.timing import Timing
from pliant.models.hf.checkpoint import open_checkpoint
from pliant.run.process_memory import MemoryBudget
from pliant.run.submodel.elastic_session import ElasticSession
from pliant.run.submodel.plans.submodel_planner import SessionOptions
from pliant.store.build import build
from pliant.store.read import open_store

ELASTIC = {"n_layers": 4, "widths": (2, 4)}
"""Of `tiny_store`: a model that can leave layers and slices out."""
OpenElastic = Callable[..., AbstractContextManager[ElasticSession]]
"""What the fixture `elastic_session` is."""


@pytest.fixture(scope="session")
def kernel_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compiled kernels, shared by all tests of a worker."""
    return tmp_path_factory.mktemp("kernels")


@pytest.fixture(scope="session")
def tiny_store(
    tiny_model: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Path]:
    """`tiny_store(family, is_classifier, **changes)` is a packed random model; never write into it."""
    made: dict[str, Path] = {}

    def store(family: str = "bert", is_classifier: bool = True, **changes: object) -> Path:
        directory = tiny_model(family, is_classifier, **changes)
        key = str(directory)
        if key not in made:
            made[key] = build(open_checkpoint(directory), tmp_path_factory.mktemp("stores") / "store")
        return made[key]

    return store


def paper_profile(
    widths: tuple[int, ...] = (2, 4),
    layer_s: float = 1e-3,
    disk: Link | None = None,
    lengths: tuple[int, ...] = (8, 24),
) -> DeviceProfile:
    """A device on paper: `layer_s` per slice and layer, a disk line, next to no overhead."""
    line = disk or Link(1e-4, 1e8)
    small = Timing(1e-5, 2e-5)
    return DeviceProfile(
        cpu="paper", n_threads=1, memory_bytes=1, frequency_Hz=None, frequency_reason="on paper",
        subject="tiny", io_method="none", reads=(), disk=line, disk_p95=line,
        layers=tuple(
            LayerTime(n, m, Timing(layer_s * m, layer_s * m), Timing(layer_s * m, layer_s * m))
            for n in lengths for m in widths
        ),
        overheads=tuple(Overhead(n, small, small, small) for n in lengths),
    )  # fmt: skip


@pytest.fixture
def slow_profile() -> Callable[..., DeviceProfile]:
    """Devices on paper, as `paper_profile` makes them."""
    return paper_profile


@pytest.fixture
def elastic_session(tiny_store: Callable[..., Path], kernel_cache: Path) -> OpenElastic:
    """`with elastic_session(options) as session:`, on the store ELASTIC and a device on paper.

    Another store or profile, and a budget to share, may be given.
    """

    @contextmanager
    def opened(
        options: SessionOptions,
        *,
        store: Path | None = None,
        profile: DeviceProfile | None = None,
        memory: MemoryBudget | None = None,
    ) -> Iterator[ElasticSession]:
        with (
            open_store(tiny_store(**ELASTIC) if store is None else store) as one,
            ElasticSession(
                one, profile or paper_profile(), options, cache=kernel_cache, memory=memory
            ) as session,
        ):
            yield session

    return opened
