"""A link that fails between two workers, while the primary hears both: only a missed exchange tells."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pliant.cluster.control.timeouts import ClusterTimeouts
from pliant.cluster.session.cluster_details import ClusterDetails
from pliant.ir.reply import Reply
from testbed import DeviceSpec, why_not
from testbed.hepti import Bed, open_bed
from tests.cluster.boundaries import Act, at_boundaries
from tests.cluster.processes import small_model

pytestmark = pytest.mark.slow

_TOKENS = 24
_PATIENCE = ClusterTimeouts(
    silence_s=120.0, least_s=3.0
)  # a busy machine keeps a process waiting for some seconds
_EVERYBODY = {"alpha", "b", "c"}


def _whole(bed: Bed, feeds: dict[str, np.ndarray]) -> Reply[ClusterDetails]:
    """A run with everybody in it; penalties of earlier faults may have to pass first."""
    until_s = time.monotonic() + 240.0
    while time.monotonic() < until_s:
        bed.cluster.wait(2, 120.0)
        reply = bed.session(feeds)
        if set(reply.details.partitions[-1].participants) == _EVERYBODY and not reply.details.faults:
            return reply
    raise AssertionError(f"not all came back: {bed.cluster.status()}")


@contextmanager
def _before_a_run(bed: Bed) -> Iterator[None]:
    bed.network.part("b", "c")
    yield


def _inside_a_run(bed: Bed) -> AbstractContextManager[None]:
    return at_boundaries(bed.cluster, Act(3, "ws", lambda: bed.network.part("b", "c")))


@pytest.mark.parametrize("cut", [_before_a_run, _inside_a_run], ids=["before a run", "inside a run"])
def test_a_link_cut_between_two_workers_costs_one_of_them_and_not_the_answer(
    cut: Callable[[Bed], AbstractContextManager[None]], tmp_path: Path
) -> None:
    """Nobody is silent and nobody is frozen: who waits in vain says so when its patience ends, one of the two
    is left out, the segment is repeated; both are in again once the link is back."""
    reason = why_not()
    if reason is not None:
        pytest.skip(f"no testbed: {reason}")
    specs = [DeviceSpec(name) for name in ("alpha", "b", "c")]
    model = small_model(tmp_path)
    said: list[str] = []
    options: dict[str, Any] = {"shares": "equal", "adapt": False, "patience": _PATIENCE}
    with open_bed(specs, model, tmp_path, on_event=said.append, **options) as bed:
        feeds = bed.session.sample(_TOKENS)
        alone = bed.session.alone(feeds)
        before = _whole(bed, feeds)
        np.testing.assert_allclose(before.outputs["vector"], alone.outputs["vector"], atol=1e-4)
        said.clear()
        with cut(bed):
            reply = bed.session(feeds)
        np.testing.assert_allclose(reply.outputs["vector"], alone.outputs["vector"], atol=1e-4)
        first = reply.details.faults[0]
        begun = 1 if cut is _before_a_run else 3
        assert first.segment in (begun, begun + 1), "of a segment that is whole at the primary, the next"
        (verdict,) = first.verdicts
        assert verdict.member in ("b", "c")
        assert "waited" in verdict.reason
        assert verdict.member not in reply.details.partitions[-1].participants
        assert not [text for text in said if text.startswith("lost")], "both are heard all the time"
        bed.network.unite("b", "c")
        after = _whole(bed, feeds)
        np.testing.assert_allclose(after.outputs["vector"], alone.outputs["vector"], atol=1e-4)
