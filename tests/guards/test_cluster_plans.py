"""Guard: how a transformer is cut over unequal devices, and which programs and simulated times follow.

Protects `solve` in the three modes, `choose_partition` by its three rules, CoEdge's, equal and proportional
shares, `split`, `ahead` and `simulate`: moving or renaming code must not change one golden file of this
guard. Devices, links and models are written below; nothing is measured. Programs between two devices are
printed in clear. Each other case is a line of its partition and the digests of its program and spans, which
names the case that changed: print that one to see what changed.

`split_modes` holds the quickest partition of each mode, `split_rules` what the planner takes by its rules,
`split_many` some of them among 9 to 26 devices, `split_baselines` what it is compared with. Update with
`pytest tests/guards/test_cluster_plans.py --update-golden`, and say in the commit what changed them. The
partitions of five and more devices come from a linear program: a new version of SciPy may move a row between
devices as good as each other.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import pytest

from pliant.cluster.lead.choose_partition import make_chooser
from pliant.ir.capability import Capability, ClusterCost, Drift, Interface, Links, StageTimes
from pliant.ir.cost import Span, simulate
from pliant.ir.dilation import Dilation
from pliant.ir.link import Link
from pliant.ir.partition import Mode, Partition
from pliant.ir.program import Program
from pliant.models.encoder.encoder_spec import EncoderSpec
from pliant.plan.partition.baselines import by_speed, coedge, equal, local
from pliant.plan.partition.decision import Decision
from pliant.plan.partition.partition_cost import to_partition
from pliant.plan.partition.partitioner import choose_partition, solve
from pliant.plan.partition.problem import PartitionProblem, pose
from pliant.plan.split.split_program import layer_segment, program_of, split
from pliant.plan.split.stage_graphs import work_flops
from tests.guards.texts import checked_text, digests, spans_text
from tests.plan.clusters import cluster
from tests.plan.splits import bert, mobilebert

pytestmark = pytest.mark.usefixtures("unchecked_shapes")

MODES: tuple[Mode, ...] = ("ws", "1d", "2d")
TOKENS = 26
ROOM = 1 << 30
_KINDS = ("attend", "attend_mix", "rest", "feed_forward.0", "reduce", "reduce.0")
_POINTS = ((2e3, 1.1e-4), (4e4, 9e-4), (8e5, 1.3e-2))
DEVICES = {
    "d0": Capability(1.0, 3.1e7, ROOM, call_s=4e-5),
    "d1": Capability(1.3, 9.7e7, ROOM, call_s=1.3e-5),
    "d2": Capability(
        0.9, 4.3e7, ROOM, call_s=2e-5, curves=tuple(StageTimes(kind, _POINTS) for kind in _KINDS)
    ),
    "d3": Capability(1.1, 1.9e8, ROOM, call_s=1e-5, drifts=(Drift("rest", 1.4),), dilation=Dilation(2.5)),
    "d4": Capability(0.7, 2.3e7, ROOM, call_s=7e-5),
}
"""Of up to six times another's speed; one measured, one dilated and slower than it was."""
LINKS = Links(
    {
        "d0": Interface(2.9e6, 3.3e6),
        "d1": Interface(7.1e6, 6.7e6),
        "d2": Interface(1.3e6, 2.7e6),
        "d3": Interface(5.3e6, 5.9e6),
        "d4": Interface(4.1e6, 1.7e6),
    },
    latency_s=6e-5,
    pairs={("d0", "d3"): Link(4e-4, 9e5), ("d3", "d0"): Link(3e-4, 1.2e6), ("d1", "d2"): Link(9e-5, 2e6)},
)
"""Both ways unlike, and three pairs slower than their interfaces."""
BERT = bert(64, 8, 256, 2)
FAMILIES = {"bert": BERT, "vit": bert(64, 8, 192, 2, pre=True), "mobilebert": mobilebert()}


def some(n: int, room: Callable[[int], int] | None = None) -> dict[str, Capability]:
    """The first n devices; `room` gives the free bytes of the i-th."""
    found = dict(list(DEVICES.items())[:n])
    if room is None:
        return found
    return {name: replace(d, free_bytes=room(i)) for i, (name, d) in enumerate(found.items())}


def problem(spec: EncoderSpec, devices: dict[str, Capability], primary: str = "d0") -> PartitionProblem:
    return pose(spec, TOKENS, devices, LINKS, primary)


def simulated(
    spec: EncoderSpec,
    partition: Partition,
    devices: Mapping[str, Capability] = DEVICES,
    links: Links = LINKS,
) -> tuple[Program, tuple[Span, ...]]:
    """The program of a partition, and when each of its steps would run."""
    program = split(spec, partition)
    cost = ClusterCost(devices, links, work_flops(spec, partition))
    return program, simulate(program, cost)


def partition_text(p: Partition) -> str:
    """One line: `ws d0 26: d0 2/8/0 ...` are heads, rows and columns; then the grid, group by group."""
    shares = " ".join(f"{s.device} {s.heads}/{s.rows}/{s.columns}" for s in p.shares)
    text = f"{p.mode} {p.primary} {p.tokens}: {shares}"
    if p.grid is None:
        return text
    groups = " | ".join(",".join(group) for group in p.grid.groups)
    return f"{text} grid {groups} outputs {p.grid.outputs} hidden {p.grid.hidden}"


def line(name: str, spec: EncoderSpec, partition: Partition) -> str:
    program, spans = simulated(spec, partition)
    end_s = max(s.end_s for s in spans)
    return f"{name}: {partition_text(partition)}; {end_s:.9f} s, {digests(program, spans)}\n"


def in_clear(name: str, spec: EncoderSpec, partition: Partition) -> str:
    program, spans = simulated(spec, partition)
    return f"== {name}: {partition_text(partition)}\n{checked_text(program)}{spans_text(spans)}"


def quickest(spec: EncoderSpec, n: int, mode: Mode, primary: str = "d0") -> Partition:
    p = problem(spec, some(n), primary)
    return to_partition(p, solve(p, mode)[0])


def modes() -> Iterator[str]:
    for mode in MODES:
        yield in_clear(f"bert, 2 devices, {mode}", BERT, quickest(BERT, 2, mode, "d1"))
    for name, numbers in (("bert", range(1, 6)), ("vit", (2, 4)), ("mobilebert", (3, 5))):
        for n in numbers:
            for mode in MODES:
                spec = FAMILIES[name]
                yield line(f"{name}, {n} devices, {mode}", spec, quickest(spec, n, mode))
    for mode in MODES:
        partition = quickest(BERT, 3, mode)
        rest = split(BERT, partition, 1)
        joined = program_of(BERT, partition, (layer_segment(BERT, partition, 0, {"d1", "d2"}),))
        yield f"from layer 1, 3 devices, {mode}: {digests(rest, ())}\n"
        yield f"two devices join, {mode}: {digests(joined, ())}\n"


def decision_line(name: str, spec: EncoderSpec, made: Decision) -> str:
    """The decision, what was considered and the weights of each device; then the program as of any other."""
    considered = ", ".join(f"{c.what} {c.seconds:.9f}" for c in made.considered)
    held = ", ".join(f"{device} {n}" for device, n in made.weight_bytes.items())
    head = f"{name}: {made.seconds:.9f} s of {considered}; bytes {held}\n"
    return f"{head}  {line('taken', spec, made.partition)}"


def rules() -> Iterator[str]:
    """With room for all weights, for half of them, and on some devices only."""
    whole = problem(BERT, some(1)).sizes
    whole_bytes = round(whole.ws_row + whole.ws_head.fixed + whole.ws_head.each * whole.n_heads)
    rooms: dict[str, Callable[[int], int]] = {
        "room for all": lambda i: ROOM,
        "room for two thirds": lambda i: whole_bytes * 2 // 3,
        "room on even devices": lambda i: whole_bytes // (1 if i % 2 == 0 else 3),
    }
    gains = {"ws": 0.5, "1d": 0.2, "2d": 0.2, "alone": 0.3}
    for said, room in rooms.items():
        for n in (3, 5):
            job = BERT, TOKENS, some(n, room), LINKS, "d0"
            made = {rule: choose_partition(*job, rule=rule) for rule in ("paper", "cost")}
            made["judged with margins"] = choose_partition(*job, rule="judged", least_gain=gains)
            for rule, decision in made.items():
                yield decision_line(f"{said}, {n} devices, {rule}", BERT, decision)


def many() -> Iterator[str]:
    """Beyond the five: searches from the fifth device on, grids from 16 on, a shortlist from 24 on."""
    spec = bert(96, 12, 384, 1)
    for n, rule, room in (
        (9, "cost", ROOM),
        (9, "paper", 220_000),
        (17, "paper", ROOM),
        (17, "cost", 220_000),
        (26, "paper", ROOM),
    ):
        devices, links = cluster(7, n, pairs=True, free_bytes=room)
        made = choose_partition(spec, 40, devices, links, "d0", rule=rule)
        found = digests(*simulated(spec, made.partition, devices, links))
        yield f"{n} devices, {rule}: {made.seconds:.9f} s {partition_text(made.partition)}; {found}\n"


def baselines() -> Iterator[str]:
    yield in_clear("CoEdge, 2 devices", BERT, coedge(problem(BERT, some(2))).partition)
    for name, spec in FAMILIES.items():
        for n in range(1, 6):
            p = problem(spec, some(n), "d1" if n > 2 else "d0")
            found = {"local": local(p), "CoEdge": coedge(p)}
            for mode in ("ws", "1d"):
                found |= {f"equal, {mode}": equal(p, mode), f"by speed, {mode}": by_speed(p, mode)}
            for rule, made in found.items():
                yield f"{made.seconds:.9f} s "
                yield line(f"{name}, {n} devices, {rule}", spec, made.partition)
            for mode in MODES:
                partition = make_chooser(mode, "equal")(spec, TOKENS, some(n), LINKS, "d0")
                yield line(f"{name}, {n} devices, a user's equal shares, {mode}", spec, partition)


BOOKS = {"modes": modes, "rules": rules, "many": many, "baselines": baselines}


@pytest.mark.parametrize("name", BOOKS)
def test_partitions_and_their_programs_are_those_of_the_golden_file(
    golden: Callable[[str, str], None], name: str
) -> None:
    """Members of a cluster run their part of this program: an order that changes is another protocol."""
    golden(f"guards/split_{name}.txt", "".join(BOOKS[name]()))
