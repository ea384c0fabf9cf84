"""Random devices and links, and what a partition takes by simulation."""

from dataclasses import replace

import numpy as np

from pliant.ir.capability import Capability, ClusterCost, Interface, Links, MessageOverhead, StageTimes
from pliant.ir.cost import latency, simulate
from pliant.ir.link import Link
from pliant.ir.partition import Partition
from pliant.models.encoder.encoder_spec import EncoderSpec
from pliant.plan.split.split_program import split
from pliant.plan.split.stage_graphs import work_flops


def cluster(
    seed: int, n: int, *, pairs: bool = False, free_bytes: int = 1 << 40
) -> tuple[dict[str, Capability], Links]:
    """Devices of up to thirty times another's speed; on small models compute and links weigh alike."""
    rng = np.random.default_rng(seed)
    names = [f"d{i}" for i in range(n)]
    devices = {
        name: Capability(1.0, 10 ** rng.uniform(6, 7.5), free_bytes, call_s=10 ** rng.uniform(-6, -4))
        for name in names
    }
    rates = 10 ** rng.uniform(6, 7.5, n)
    interfaces = {name: Interface(rate, rate) for name, rate in zip(names, rates, strict=True)}
    named = {
        (a, b): Link(10 ** rng.uniform(-5, -3.5), 10 ** rng.uniform(5.5, 7.5))
        for a in names for b in names if a != b and pairs and rng.random() < 0.3
    }  # fmt: skip
    return devices, Links(interfaces, 10 ** rng.uniform(-6, -4), named)


def simulated_s(
    spec: EncoderSpec, partition: Partition, devices: dict[str, Capability], links: Links
) -> float:
    """The true cost: `simulate` of the real program."""
    cost = ClusterCost(devices, links, work_flops(spec, partition))
    return latency(simulate(split(spec, partition), cost))


def handing(devices: dict[str, Capability], seed: int) -> dict[str, Capability]:
    """The same devices, whose threads take as long for messages as small stages take, or less."""
    rng = np.random.default_rng(seed)

    def some() -> MessageOverhead:
        return MessageOverhead(10 ** rng.uniform(-6, -4), 10 ** rng.uniform(-10, -8))

    return {name: replace(device, send=some(), take=some()) for name, device in devices.items()}


def curved(device: Capability) -> Capability:
    """The same device, measured: small stages cost more by the FLOP."""
    unit = device.cycles_per_flop / device.frequency_Hz
    points = tuple((ops, device.call_s + unit * (ops + 40.0 * ops**0.5)) for ops in (50.0, 500.0, 5e3, 5e4))
    kinds = ("input", "attend", "attend_mix", "rest", "feed_forward.0", "reduce", "reduce.0", "head")
    return replace(device, curves=tuple(StageTimes(kind, points) for kind in kinds))
