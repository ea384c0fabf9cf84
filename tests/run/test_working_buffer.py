"""The bound of the working memory, measured: what a session really reads its layers into."""

import pytest

from pliant.run.submodel.plans.submodel_planner import SessionOptions
from tests.run.conftest import OpenElastic


@pytest.mark.parametrize("is_anytime", [True, False])
@pytest.mark.parametrize("working_bytes", [None, 120_000, 60_000, 30_000])
def test_the_working_buffer_is_what_was_planned_and_within_its_bound(
    elastic_session: OpenElastic, working_bytes: int | None, is_anytime: bool
) -> None:
    """Planned in blocks of the file's order, measured in blocks that were read: both must agree."""
    options = SessionOptions(
        0.5, 2000, length=8, is_anytime=is_anytime, working_bytes=working_bytes, adapts=False
    )
    with elastic_session(options) as session:
        session("a good film")
        planned = session.plan.memory
        assert session.weight_bytes == planned.preload_bytes + planned.working_bytes
        assert planned.working_bytes > 0
        session("the film is good and the story is not bad , a good plot")
        if working_bytes is not None:
            assert session.weight_bytes - planned.preload_bytes <= working_bytes
            assert min(min(row) for row in session.plan.bits) < 32
