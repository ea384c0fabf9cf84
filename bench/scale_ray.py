"""`scale.ray`: a router of unequal replicas against Ray's own, and a data set through actors, on a local Ray.

Two replicas of one deployment, one dilated by 4 (its lane sleeps three times as long as it works): Poisson
requests at fractions of both replicas' capacity, the same ones for both routers, interleaved. 25,000 reviews
go through `map_batches`: with an actor killed in the middle, every row must come once, with the answer of a
bare loop; without, actors are compared with as many concurrent bare loops. Data are read from PLIANT_DATA.
"""

import os
from pathlib import Path
from tempfile import TemporaryDirectory

os.environ.setdefault("RAY_AUTH_MODE", "disabled")  # a token would be written to the home folder
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import ray
import ray.data
from ray import serve

from pliant.models.examples import read_examples
from report import ROOT, Report, options
from scale_ray_batches import ACTORS, batched
from scale_ray_routing import routed

DATA = Path(os.environ.get("PLIANT_DATA") or ROOT.parent / "shared" / "data") / "imdb" / "test.tsv.gz"
ROUTED, BATCHED = "sst2", "imdb-lstm"
LESS, KEPT = 0.7, 0.9
_QUICK = 3000


def main() -> None:
    told = options(__doc__ or "")
    reviews = [example.text for example in read_examples(DATA, ("negative", "positive"))]
    report = Report("scale_ray", f"{ROUTED} and {BATCHED} on IMDb's reviews, one thread each", told)
    # Ray lowers the priority of its workers (15): other load would take time only from actors.
    ray.init(
        num_cpus=ACTORS, include_dashboard=False, log_to_driver=False, _system_config={"worker_niceness": 0}
    )
    ray.data.DataContext.get_current().enable_progress_bars = False
    try:
        with TemporaryDirectory() as folder:
            used, rounds = (reviews[:_QUICK], 1) if told.quick else (reviews, 3)
            found = batched(report, BATCHED, used, rounds, Path(folder))
        serve.start(proxy_location="Disabled", logging_config={"log_level": "ERROR"})
        worst = routed(report, ROUTED, reviews[::50], *((1, 3.0) if told.quick else (2, 7.0)))
    finally:
        serve.shutdown()
        ray.shutdown()
    bar = f"at most {LESS:g} of the 95th percentile of Ray's default router"
    report.claim("scale.ray", worst, bar, worst <= LESS, "the worst of all loads")
    wrong = found.lost_or_twice + found.other_answers
    said = f"{found.lost_or_twice} rows lost or twice, {found.other_answers} other answers, of {len(used)}"
    bar = "every row once with the answer of a bare loop, an actor killed in the middle"
    report.claim("scale.ray", said, bar, found.is_killed and not wrong)
    bar = f"at least {KEPT:g} of actors times a bare loop"
    note = "rows a second while all actors are at work, of loops that run at once; the worst round"
    report.claim("scale.ray", found.share, bar, found.share >= KEPT, note)
    report.finish()


if __name__ == "__main__":
    main()
