"""A session as an endpoint: its curves come from plans, its answers from the submodel that fits the time."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest

from pliant.errors import BudgetError, InputError
from pliant.ir.device import DeviceProfile
from pliant.ir.endpoint import Endpoint, Request
from pliant.ir.times.bounds import AdaptiveBound
from pliant.run.submodel.session import Session, SessionOptions
from pliant.serve.node.elastic_endpoint import WHOLE_S, ElasticSession
from pliant.store.build import build
from pliant.store.manifest import AccuracyEntry, AccuracyTable, put_accuracy
from pliant.store.read import open_store

TEXT = "the story was not good"
GRID = AccuracyTable(
    500,
    tuple(
        AccuracyEntry(n, m, bits, 0.6 + 0.05 * n + 0.02 * m - 0.05 / bits, -1 + 0.1 * n + 0.04 * m)
        for n in (1, 2, 3, 4)
        for m in (2, 4)
        for bits in (2, 6, 32)
    ),
)


@pytest.fixture(scope="module")
def store(tiny_model: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model of four layers that knows what its submodels answer."""
    from pliant.models.hf.checkpoint import open_checkpoint

    model = tiny_model("bert", n_layers=4, widths=(2, 4))
    path = build(open_checkpoint(model), tmp_path_factory.mktemp("elastic") / "store")
    put_accuracy(path, GRID)
    return path


@contextmanager
def opened(path: Path, profile: DeviceProfile, preload: int = 10**9) -> Iterator[ElasticSession]:
    with ExitStack() as stack:
        options = SessionOptions(WHOLE_S, preload, length=8, n_threads=1, adapts=False)
        session = stack.enter_context(Session(stack.enter_context(open_store(path)), profile, options))
        yield ElasticSession("tiny", session)


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv("PLIANT_CACHE", str(tmp_path_factory.getbasetemp() / "kernels"))


@pytest.mark.parametrize("preload", [0, 20_000, 10**9])
def test_a_lower_floor_is_never_slower_at_any_length(
    preload: int, store: Path, slow_profile: Callable[..., DeviceProfile]
) -> None:
    """From plans of a real store, whatever part of it is in memory."""
    with opened(store, slow_profile(), preload) as endpoint:
        assert isinstance(endpoint, Endpoint)
        best = endpoint.trade.best
        assert best is not None
        floors = [0.0, 0.7, 0.75, 0.8, best]
        for n in range(25):
            times = [endpoint.curve(floor).at(n) for floor in floors]
            assert times == sorted(times)
        assert times[0] < times[-1]


def test_what_runs_is_what_was_estimated(store: Path, slow_profile: Callable[..., DeviceProfile]) -> None:
    """Under each deadline the submodel of the estimate's accuracy answers, as the session by itself does."""
    accuracies = []
    with opened(store, slow_profile()) as endpoint:
        for deadline_s in (0.001, 0.007, 0.012, float("inf")):
            endpoint.trade.bound = AdaptiveBound()  # a device on paper: what was measured says nothing
            request = Request(7, TEXT, deadline_s=deadline_s)
            estimate, key = endpoint.estimate(request), endpoint.trade.pick(7, 0.0, deadline_s).level.key
            assert isinstance(key, float)
            reply, alone = endpoint.answer(request), endpoint.session(TEXT, latency=key)
            assert reply.accuracy == estimate.accuracy
            assert alone.logits is not None
            np.testing.assert_allclose(reply.outputs["logits"][0], alone.logits, rtol=1e-5)
            assert deadline_s < 0.005 or estimate.seconds <= deadline_s
            accuracies.append(reply.accuracy or 0.0)
    assert accuracies == sorted(accuracies)
    assert accuracies[0] < accuracies[-1] == endpoint.trade.best


def test_the_whole_answers_time_follows_from_a_smaller_ones(
    store: Path, slow_profile: Callable[..., DeviceProfile]
) -> None:
    """A router learns the device's speed from answers of any size."""
    with opened(store, slow_profile()) as endpoint:
        reply = endpoint.answer(Request(7, TEXT, deadline_s=0.007))
        small = endpoint.trade.pick(7, 0.0, 0.007 * endpoint.trade.bound.pace).level
        assert reply.whole_s == pytest.approx(
            reply.seconds * endpoint.trade.fullest(7).level.at(7) / small.at(7)
        )


def test_floors_out_of_reach_and_models_without_labels_are_refused(
    store: Path, tiny_model: Callable[..., Path], slow_profile: Callable[..., DeviceProfile], tmp_path: Path
) -> None:
    """With the value and the limit, before anything runs."""
    from pliant.models.hf.checkpoint import open_checkpoint

    with opened(store, slow_profile()) as endpoint, pytest.raises(BudgetError, match="lower the floor"):
        endpoint.estimate(Request(7, TEXT, accuracy_floor=0.99))
    vectors = build(open_checkpoint(tiny_model("bert", False)), tmp_path / "vectors")
    with pytest.raises(InputError, match="serve a classifier"), opened(vectors, slow_profile(widths=(4,))):
        pass
    shutil.rmtree(vectors)
