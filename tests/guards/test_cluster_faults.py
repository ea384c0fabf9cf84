"""Guard: which epochs, plans and verdicts a fixed list of faults leads to, and that every answer is right.

Protects `RunLeader`, `Primary`, `ClusterWorker`, `RunExecutor`, `attribute_faults` and the in-memory engine:
moving or renaming code must not change the golden file of this guard. A run has one fault or two, drawn from
a seed. Each strikes when the primary has begun a layer that its victim has not: the victim waits for that, so
that no timing decides which segment is repeated. Waits for messages are long, and only a silence takes time.
Real processes, sockets and faults at any moment are tested in `tests/cluster/test_faults.py`.

Who is left out after lost messages depends on who gives up first, so that of those only the answers are
checked. Update with `pytest tests/guards/test_cluster_faults.py --update-golden`, and say in the commit
what changed them.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Literal

import numpy as np
import pytest

from pliant.cluster.control.timeouts import ClusterTimeouts
from pliant.cluster.lead.lead_run import RunRecord
from pliant.ir.program import Compute
from pliant.ir.schedule import violations
from tests.cluster.fakes import FakeCluster, lost
from tests.cluster.lossy import LossyNetwork
from tests.plan.splits import bert

Kind = Literal["kill", "freeze", "lie", "late", "shuffled", "lose"]
KINDS: tuple[Kind, ...] = ("kill", "freeze", "lie", "late", "shuffled")
pytestmark = pytest.mark.usefixtures("unchecked_shapes")

N_LAYERS, WORKERS = 4, "abc"
TOLERANCE = 1e-5  # the same float32 sums on every device
CALM = ClusterTimeouts(silence_s=0.5, least_s=60.0, times=1.0, grace_s=0.1, prepare_s=60.0, report_s=10.0)
"""A wait for a message ends by news of its sender, and by nothing else."""
HASTY = replace(CALM, least_s=0.5)
"""For messages that are lost, which no news tells of."""


@dataclass(frozen=True)
class Fault:
    """What happens to `victim` when the primary has begun `layer`; late and shuffled messages are all's."""

    kind: Kind
    victim: str
    layer: int

    def __str__(self) -> str:
        what = f"{self.kind} messages" if self.is_delay else f"{self.kind} {self.victim}"
        return f"{what} in layer {self.layer}"

    @property
    def is_delay(self) -> bool:
        """Whether every message arrives, though not at once."""
        return self.kind in ("late", "shuffled")


def drawn(seed: int) -> tuple[Fault, ...]:
    """One fault or two, of members and layers that differ; the first is of the seed's own kind."""
    rng = random.Random(seed)
    n = rng.choice((1, 2))
    victims, layers = rng.sample(WORKERS, n), sorted(rng.sample(range(N_LAYERS), n))
    kinds = [KINDS[seed % len(KINDS)], rng.choice(KINDS)]
    return tuple(Fault(*one) for one in zip(kinds[:n], victims, layers, strict=True))


class Stage:
    """A cluster on which faults strike where the primary and the victim meet."""

    def __init__(self, network: LossyNetwork, patience: ClusterTimeouts) -> None:
        self.network = network
        self.cluster = FakeCluster(bert(n_layers=N_LAYERS), patience, network)
        self._armed: list[Fault] = []

    def __enter__(self) -> "Stage":
        for name in WORKERS:
            self.cluster.add(name)
        self.cluster.primary.wait_for(len(WORKERS), 10.0)
        return self

    def __exit__(self, *_: object) -> None:
        self.cluster.__exit__()

    def arm(self, faults: Sequence[Fault]) -> None:
        """Each of `faults` strikes once."""
        self._armed = list(faults)
        self.cluster.before["p"] = self._strikes
        for fault in faults:
            if not fault.is_delay:
                self.cluster.before[fault.victim] = self._waits(fault)

    def heal(self) -> None:
        """No fault goes on; who was frozen goes on instead, and has been heard of again on return."""
        self.cluster.before.clear()
        self.network.heal()
        self.cluster.wires.cut.clear()
        for machine in self.cluster.machines.values():
            machine.thaw.set()

    def _waits(self, fault: Fault) -> Callable[[Compute], None]:
        machine = self.cluster.machines[fault.victim]

        def before(work: Compute) -> None:
            if (work.kernel, work.layer) == ("attend", fault.layer):
                machine.thaw.wait(60.0)
                if not machine.control.is_open:
                    raise lost(fault.victim)

        return before

    def _strikes(self, work: Compute) -> None:
        for fault in [f for f in self._armed if (work.kernel, work.layer) == ("attend", f.layer)]:
            self._armed.remove(fault)
            self._inflict(fault)

    def _inflict(self, fault: Fault) -> None:
        machine = self.cluster.machines[fault.victim]
        match fault.kind:
            case "kill":
                machine.control.close()
                machine.comm.close()
                machine.kill()
            case "freeze":
                self.cluster.wires.cut.add(fault.victim)
            case "lie":
                self.network.lying.add(fault.victim)
                machine.thaw.set()
            case "lose":
                self.network.losing.add(fault.victim)
                machine.thaw.set()
            case "late" | "shuffled":
                self.network.order = fault.kind

    def answer(self, seed: int) -> RunRecord:
        """A run, whose answer must be that of one device, and which must be a schedule of its program."""
        answer, wanted, led = self.cluster.run(seed=seed)
        np.testing.assert_allclose(answer, wanted, atol=TOLERANCE)
        assert isinstance(led, RunRecord)
        assert not list(violations(led.program, led.spans))
        return led


def led_text(led: RunRecord) -> str:
    """Epoch and members of each segment, and who was found at fault where; not who was heard of when."""
    segments = [
        (t.epoch, "".join(sorted(h.partition.participants)))
        for t, h in zip(led.tasks, led.plans, strict=True)
    ]
    runs = [(key, len(list(group))) for key, group in groupby(segments)]
    plans = ", ".join(f"{n} by {members} in epoch {epoch}" for (epoch, members), n in runs)
    faults = ""
    for fault in led.faults:
        names = " ".join(f"{v.member}{' (lied)' if v.is_liar else ''}" for v in fault.verdicts)
        faults += f"; segment {fault.segment} again without {names}"
    return f"segments {plans}{faults}"


def replayed(seeds: Sequence[int]) -> Iterator[str]:
    """What came of each seed's faults, and of a run after them."""
    for seed in seeds:
        faults = drawn(seed)
        with Stage(LossyNetwork(seed), CALM) as stage:
            stage.arm(faults)
            yield f"{seed}: {' and '.join(map(str, faults))}: {led_text(stage.answer(seed))}\n"
            stage.heal()
            gone = {f.victim for f in faults if f.kind in ("kill", "lie")}
            stage.cluster.primary.wait_for(len(WORKERS) - len(gone), 30.0)
            after = stage.answer(seed + 1)
            yield f"  then {''.join(sorted(after.plans[-1].partition.participants))}\n"


def test_faults_lead_to_the_epochs_plans_and_verdicts_of_the_golden_file(
    golden: Callable[[str, str], None],
) -> None:
    """The segment that was struck is repeated without the one at fault, and nothing else is."""
    golden("guards/cluster_faults.txt", "".join(replayed(range(10))))


@pytest.mark.parametrize("seed", range(2))
def test_lost_messages_cost_time_and_not_the_answer(seed: int) -> None:
    """A member whose data no longer arrives, though it is heard, must neither stop a run nor falsify it."""
    rng = random.Random(seed)
    fault = Fault("lose", rng.choice(WORKERS), rng.randrange(N_LAYERS))
    with Stage(LossyNetwork(seed), HASTY) as stage:
        stage.arm([fault])
        led = stage.answer(seed)
        assert led.faults
        assert led.tasks[0].epoch < led.tasks[-1].epoch
