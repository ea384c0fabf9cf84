"""A partitioning problem as arrays: the cost of each share in time, bytes and memory.

A tabulated form of `ClusterCost`, which prices the steps of one partition's program: here every count of
heads, rows and columns is priced at once, by the same curves, links and hand-overs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pliant.arrays import Float
from pliant.ir.capability import Capability, Links, MessageOverhead
from pliant.ir.dilation import Dilation
from pliant.models.encoder.encoder_spec import EncoderSpec
from pliant.plan.partition.device_times import DeviceTimes, time_table
from pliant.plan.partition.device_times import TimeTable as TimeTable
from pliant.plan.partition.sizes import ITEMSIZE as ITEMSIZE
from pliant.plan.partition.sizes import AffineCost, LayerSizes, layer_sizes, reduce_kernels
from pliant.plan.split.split_program import HEAD, INPUT
from pliant.plan.split.stage_graphs import end_flops


@dataclass(frozen=True, slots=True)
class PartitionProblem:
    """Devices in order with all costs: seconds, bytes, bytes per second.

    `attend_s`, `mixed_s` (attend_mix) by heads, `rest_s` by rows, `forward_s` (each feed forward) by columns.
    `latency_s` and `rate` are [devices, devices], of single pairs; `egress`, `ingress` and `memory` are
    [devices], as are the two arrays of `send` and `take`: seconds per message and per byte of the compute
    thread. `ends_s` are the primary's seconds for the input and the head, whatever the plan.
    """

    names: tuple[str, ...]
    primary: int
    sizes: LayerSizes
    times: DeviceTimes
    attend_s: TimeTable
    mixed_s: TimeTable
    rest_s: TimeTable
    forward_s: tuple[TimeTable, ...]
    latency_s: Float[np.ndarray, "devices devices"]
    rate: Float[np.ndarray, "devices devices"]
    egress: Float[np.ndarray, " devices"]
    ingress: Float[np.ndarray, " devices"]
    memory: Float[np.ndarray, " devices"]
    send: tuple[Float[np.ndarray, " devices"], Float[np.ndarray, " devices"]]
    take: tuple[Float[np.ndarray, " devices"], Float[np.ndarray, " devices"]]
    ends_s: float

    @property
    def n(self) -> int:
        return len(self.names)

    @property
    def has_message_cost(self) -> bool:
        """Whether messages cost any thread time."""
        return any(part.any() for part in (*self.send, *self.take))

    def reduce_s(self, f: int, n_terms: int) -> TimeTable:
        """Return the times by rows of the f-th sum of `n_terms` partial results."""
        s = self.sizes
        amount = AffineCost(0.0, s.reduces[f] + (n_terms - 1.0) * s.inner)
        return time_table(self.times.devices, reduce_kernels(s.n_forwards)[f], amount, s.rows)


def pose(
    spec: EncoderSpec,
    tokens: int,
    capabilities: Mapping[str, Capability],
    links: Links,
    primary: str,
    bits: tuple[int, ...] = (),
) -> PartitionProblem:
    """Return the problem of `tokens` rows of `spec` on these devices, with layers in codes of `bits`, if any.

    Raises InputError, ProfileError.
    """
    s = layer_sizes(spec, tokens, bits)
    names = tuple(capabilities)
    devices = tuple(capabilities.values())
    ways = [[links.link(src, dst) for dst in names] for src in names]
    return PartitionProblem(
        names=names,
        primary=names.index(primary),
        sizes=s,
        times=DeviceTimes(devices),
        attend_s=time_table(devices, "attend", s.attend, s.n_heads),
        mixed_s=time_table(devices, "attend_mix", s.mixed, s.n_heads),
        rest_s=time_table(devices, "rest", s.rest, s.rows),
        forward_s=tuple(
            time_table(devices, f"feed_forward.{f}", s.forward, s.n_columns) for f in range(s.n_forwards)
        ),
        latency_s=np.array([[way.latency_s for way in row] for row in ways]),
        rate=np.array([[way.bandwidth_Bps for way in row] for row in ways]),
        egress=np.array([links.interfaces[n].egress_Bps for n in names]),
        ingress=np.array([links.interfaces[n].ingress_Bps for n in names]),
        memory=np.array([max(float(d.free_bytes - s.spare), 1.0) for d in devices]),
        send=_overheads([d.send for d in devices]),
        take=_overheads([d.take for d in devices]),
        ends_s=sum(capabilities[primary].seconds(end, end_flops(spec, tokens)) for end in (INPUT, HEAD)),
    )


def in_units_of(p: PartitionProblem, unit_s: float) -> PartitionProblem:
    """Return the problem in units of `unit_s`: a solver's tolerances are absolute."""
    return replace(
        p,
        times=DeviceTimes(
            tuple(replace(d, dilation=d.dilation.times(Dilation(1 / unit_s))) for d in p.times.devices)
        ),
        attend_s=p.attend_s / unit_s,
        mixed_s=p.mixed_s / unit_s,
        rest_s=p.rest_s / unit_s,
        forward_s=tuple(each / unit_s for each in p.forward_s),
        latency_s=p.latency_s / unit_s,
        rate=p.rate * unit_s,
        egress=p.egress * unit_s,
        ingress=p.ingress * unit_s,
        send=(p.send[0] / unit_s, p.send[1] / unit_s),
        take=(p.take[0] / unit_s, p.take[1] / unit_s),
        ends_s=p.ends_s / unit_s,
    )


def _overheads(
    each: Sequence[MessageOverhead],
) -> tuple[Float[np.ndarray, " devices"], Float[np.ndarray, " devices"]]:
    return np.array([one.message_s for one in each]), np.array([one.byte_s for one in each])
