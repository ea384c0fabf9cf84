"""Explain a plan in sentences: each mode's time and its terms, memory, distance from the bound.

Makes no choices: for other modes, it reports the plan that the planner would find.
"""

from collections.abc import Iterator, Mapping

from pliant.cluster.lead.predict import Prediction, predict
from pliant.cluster.net.activation_coding import Coding
from pliant.cluster.watch.adapt import Topology, find_overloaded
from pliant.ir.program import Compute, Exchange, value
from pliant.models.encoder.encoder_spec import EncoderSpec
from pliant.plan.partition.baselines import predicted_s
from pliant.plan.partition.decision import Decision, RunOption
from pliant.plan.partition.lower_bound import bound_s
from pliant.plan.partition.partitioner import Gains, choose_partition
from pliant.plan.partition.problem import PartitionProblem, pose
from pliant.plan.partition.shortlist import MAX_DEVICES
from pliant.plan.split.activation_bytes import memory_bytes, whole_memory_bytes
from pliant.quantities import format_bytes, format_seconds

BOUND_S = 1.0
"""Seconds for tightening the bound: a person waits for an explanation, no run does."""


def explain(
    spec: EncoderSpec, solved: Prediction, primary: str, least_gain: Gains, coding: Coding = "fp32"
) -> tuple[str, ...]:
    """Return sentences about a plan: its own time, each mode's, single devices', memory, possible savings.

    `least_gain` is the saving over the best single device that a split needs to be chosen.
    """
    tokens, topology = solved.partition.tokens, solved.topology
    devices, links = topology.capabilities, topology.links
    paper = choose_partition(spec, tokens, devices, links, primary)
    judged = choose_partition(spec, tokens, devices, links, primary, rule="judged")
    all_ = choose_partition(spec, tokens, devices, links, primary, rule="cost")
    said = [f"chosen, {_terms(solved)}"]
    modes = {one.what: one for one in all_.considered if one.partition is not None}
    said += [_mode(spec, one, topology, coding) for one in modes.values()]
    said += [f"{one.what}: no plan fits in memory" for one in all_.considered if one.is_unfit]
    said += _alone(all_.considered, primary)
    said.append(f"the paper's rule (Hepti 4.3): {paper.reasons[0]}")
    said += _gain(judged, solved, least_gain)
    said += _memory(spec, solved)
    if len(devices) <= MAX_DEVICES:
        said.append(_gap(pose(spec, tokens, devices, links, primary), solved))
    return tuple(said)


def misfits(need: Mapping[str, int], topology: Topology) -> tuple[str, ...]:
    """Return a sentence for every device whose share does not fit: the value, the limit, the remedy."""
    return tuple(
        f"{name} needs {format_bytes(need[name])} for its weights and activations and has "
        f"{format_bytes(topology.capabilities[name].free_bytes)} free: this plan cannot run. "
        "Free memory, leave the device out, or take --partition best."
        for name in find_overloaded(need, topology)
    )


def _mode(spec: EncoderSpec, one: RunOption, topology: Topology, coding: Coding) -> str:
    assert one.partition is not None, one
    return f"the quickest found, {_terms(predict(spec, one.partition, topology, coding))}"


def _terms(solved: Prediction) -> str:
    """`mode ws: 93 ms; 61 ms of it compute on kitchen, the busiest; ...`."""
    computing: dict[str, float] = {}
    n_bytes = 0
    for step, span in zip(solved.program.steps, solved.spans, strict=True):
        match step.work:
            case Compute(device=device):
                computing[device] = computing.get(device, 0.0) + span.seconds
            case Exchange() as sent:
                n_bytes += value(sent.n_bytes, {})
    busiest = max(computing, key=lambda name: computing[name])
    waits_s = max(solved.seconds - computing[busiest], 0.0)
    return (
        f"mode {solved.partition.mode} on {len(solved.partition.participants)}: "
        f"{format_seconds(solved.seconds)}; {format_seconds(computing[busiest])} of it compute on {busiest}, "
        f"the busiest, {format_seconds(waits_s)} its waits for exchanges ({format_bytes(n_bytes)} in all)"
    )


def _alone(considered: tuple[RunOption, ...], primary: str) -> Iterator[str]:
    alone = [one for one in considered if one.what.endswith(" alone")]
    best = min(alone, key=lambda one: one.seconds)
    if not best.is_unfit:
        yield f"best device alone: {best.what.removesuffix(' alone')}, {format_seconds(best.seconds)}"
    own = next((one for one in alone if one.what == f"{primary} alone"), None)
    if own is not None and own != best and not own.is_unfit:
        yield f"the primary alone: {format_seconds(own.seconds)}"


def _gain(judged: Decision, solved: Prediction, least_gain: Gains) -> Iterator[str]:
    """Yield why one device runs everything although a split would be faster: it saves too little."""
    alone_s = min(one.seconds for one in judged.considered if one.what.endswith(" alone"))
    splits = [one for one in judged.considered if one.partition is not None]
    if len(solved.partition.participants) > 1 or not splits:
        return
    best = min(splits, key=lambda one: one.seconds)
    assert best.partition is not None
    least = least_gain[best.partition.mode]
    if (1 - least) * alone_s <= best.seconds < alone_s:
        yield (
            f"mode {best.what} saves {100 * (1 - best.seconds / alone_s):.0f} % of its time "
            f"by prediction, and predictions of splits err: it is run from {100 * least:.0f} % on, "
            f"or with --mode {best.what}"
        )


def _memory(spec: EncoderSpec, solved: Prediction) -> Iterator[str]:
    """Yield the devices that cannot hold all weights, and those with enough memory but no share."""
    partition, devices = solved.partition, solved.topology.capabilities
    whole, need = whole_memory_bytes(spec, partition.tokens), memory_bytes(spec, partition)
    for name, device in devices.items():
        takes = (
            "takes no share" if name not in partition.participants else f"holds {format_bytes(need[name])}"
        )
        if device.free_bytes < whole:
            yield (
                f"{name} has {format_bytes(device.free_bytes)} free, too little for the whole model "
                f"({format_bytes(whole)}): it {takes}"
            )
        elif name not in partition.participants:
            yield f"{name} has memory enough and takes no share in this plan"


def _gap(p: PartitionProblem, solved: Prediction) -> str:
    least_s, own_s = bound_s(p, solved.partition.mode, BOUND_S), predicted_s(p, solved.partition)
    return (
        f"no plan of mode {solved.partition.mode} is predicted to take less than {format_seconds(least_s)}: "
        f"at most {100 * max(1 - least_s / own_s, 0.0):.0f} % might be saved"
    )
