"""The memory that plans need together, with weights that they share counted once. Pure."""

from collections import Counter
from collections.abc import Collection

from pliant.cluster.lead.predict import Prediction
from pliant.cluster.member.ready_plan import ReadyPlan
from pliant.cluster.watch.adapt import find_overloaded
from pliant.ir.partition import Partition
from pliant.models.encoder.encoder_source import EncoderSource
from pliant.models.encoder.encoder_spec import EncoderSpec
from pliant.plan.split.activation_bytes import activation_bytes, memory_bytes
from pliant.plan.split.stage_graphs import weight_bytes


def fits(source: EncoderSource, solved: Prediction, beside: Collection[ReadyPlan]) -> bool:
    """Return whether every device has memory for the plan and for those `beside` it."""
    models = {held.source.identity: held.source for held in beside} | {source.identity: source}
    together: Counter[str] = Counter()
    for identity, one in models.items():
        partitions = [held.partition for held in beside if held.source.identity == identity]
        partitions += [solved.partition] if identity == source.identity else []
        together.update(memory_bytes(one.spec, *partitions))
    return not find_overloaded(together, solved.topology)


def alternating_bytes(spec: EncoderSpec, partitions: Collection[Partition]) -> Counter[str]:
    """Return the bytes of each device for plans that share weights; one at a time has activations."""
    need, most = Counter(weight_bytes(spec, *partitions)), Counter[str]()
    for partition in partitions:
        most |= Counter(activation_bytes(spec, partition))
    return need + most


def new_bytes(source: EncoderSource, partition: Partition, beside: Collection[ReadyPlan]) -> dict[str, int]:
    """Return the bytes of weights that each device must load for a partition if it holds those `beside`."""
    held = [one.partition for one in beside if one.source.identity == source.identity]
    before, after = weight_bytes(source.spec, *held), weight_bytes(source.spec, *held, partition)
    return {name: after[name] - before.get(name, 0) for name in partition.devices}
