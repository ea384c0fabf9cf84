"""A local Ray for the tests of a module: two CPUs, no dashboard, nothing written outside its folder."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Ray runs while a module's tests do; the value is a folder of theirs.

    Actors import pliant from where this process does, and share its caches.
    """
    import ray
    import ray.data

    import pliant
    from tests.ray.killed_actor import MARKER

    folder = tmp_path_factory.mktemp("ray")
    kept = dict(os.environ)
    os.environ |= {
        "RAY_AUTH_MODE": "disabled",  # else a token is written to the home folder
        "RAY_USAGE_STATS_ENABLED": "0",
        MARKER: str(folder / "killed"),
        "PYTHONPATH": os.pathsep.join(
            [
                str(Path(pliant.__file__).parents[1]),
                str(Path(__file__).parents[2]),
                kept.get("PYTHONPATH", ""),
            ]
        ),
    }
    try:
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=100 << 20)
        ray.data.DataContext.get_current().enable_progress_bars = False
        yield folder
    finally:
        ray.shutdown()
        os.environ.clear()
        os.environ.update(kept)
