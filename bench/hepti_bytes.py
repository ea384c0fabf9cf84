"""Table 3, and 5.2's counts: bytes between devices, element-wise additions and memory, mode by mode.

Bytes are counted by the program, by comm and at the interface; additions and memory are derived from the
programs.
"""

from collections.abc import Mapping
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hepti_modes import MODES, split_of
from hepti_rig import PRIMARY, SECONDARY, open_rig, pair, random_model
from pliant.ir.partition import Partition
from pliant.models.encoder.encoder_random import random_encoder
from pliant.models.encoder.encoder_source import Encoder
from pliant.models.encoder.encoder_spec import EncoderSpec
from pliant.plan.split.split_program import layer_segment, opening_segment, traffic
from pliant.plan.split.stage_graphs import flops, weight_bytes
from pliant.plan.split.stages import DeviceStage, stages
from report import Claim

HEADS, ROWS = 2, 32
_POINTS = {
    "attended": "before the output product",
    "mixed": "before the first norm, partial sums",
    "h.0": "before the feed forward, rows",
    "down.0": "before the second norm, partial sums",
    "x": "after the second norm, rows",
}
_PAPER: dict[tuple[str, str], tuple[int, int]] = {
    ("ws", "attended"): (114_688, 114_688),
    ("ws", "x"): (131_072, 917_504),
    ("1d", "first norm"): (1_048_576, 1_048_576),
    ("1d", "second norm"): (1_048_576, 1_048_576),
}
PAPER_MORE_ADDITIONS = 1_048_576
PAPER_SAVED = 21.6
PAPER_WS_BYTES, PAPER_1D_BYTES = 1.63e9, 757e6
"""The secondary's memory in the weight-stationary and the 1D-tiled mode (5.3)."""


def measure(quick: bool) -> dict[str, Any]:
    """Bytes of one layer by point, of whole runs by counter, and work and memory from the programs."""
    source = random_encoder("bert-large")
    spec = source.spec
    plans = {mode: split_of(mode, spec, HEADS, ROWS) for mode in MODES}
    return {
        "points": [row for mode, plan in plans.items() for row in _points(spec, mode, plan)],
        "counted": _counted(2),
        "work": [_work(spec, mode, plan) for mode, plan in plans.items()],
        "memory": _memory(source, plans),
    }


def claims(found: Mapping[str, Any]) -> list[Claim]:
    """Whether the bytes equal the paper's, by every counter."""
    points = [row for row in found["points"] if row["paper"] != "-"]
    counted = found["counted"]
    is_exact = all(row["sent by"] == row["paper"] for row in points)
    is_counted = all(row["program"] == row["comm"] for row in counted)
    most = max(row["interface / comm"] for row in counted)
    said = f"{sum(row['sent by'] == row['paper'] for row in points)} of {len(points)} as in Table 3"
    return [
        Claim(
            "hepti.bytes",
            f"{said}; interface up to {most:.3f} times comm's payload",
            "bytes of every point as in Table 3, comm's count the program's, the interface's within 10 %",
            is_exact and is_counted and most < 1.10,
            "the rest are tags, notes, encryption, TCP, Ethernet, acknowledgements and heartbeats",
        )
    ]


def _points(spec: EncoderSpec, mode: str, partition: Partition) -> list[dict[str, object]]:
    sent = traffic(layer_segment(spec, partition, 0).steps)
    rows: list[dict[str, object]] = []
    for point, when in _POINTS.items():
        if any(p == point for _, p in sent):
            each = sent.get((PRIMARY, point), 0), sent.get((SECONDARY, point), 0)
            rows.append(_point(mode, when, each, _PAPER.get((mode, point))))
    if mode == "1d":
        for name, parts in (("first norm", ("mixed", "h.0")), ("second norm", ("down.0", "x"))):
            each = tuple(sum(sent[device, part] for part in parts) for device in (PRIMARY, SECONDARY))
            rows.append(_point(mode, f"{name}, both exchanges", each, _PAPER[mode, name]))
    return rows


def _point(
    mode: str, when: str, sent: tuple[int, ...], paper: tuple[int, int] | None
) -> dict[str, object]:  # fmt: skip
    said = "-" if paper is None else f"{paper[0]:,} and {paper[1]:,}"
    return {"mode": mode, "point": when, "sent by": f"{sent[0]:,} and {sent[1]:,}", "paper": said}


def _counted(n_layers: int) -> list[dict[str, object]]:
    """One run of each mode, counted by comm at the primary and by the kernel at its interface."""
    rows: list[dict[str, object]] = []
    with TemporaryDirectory() as name:
        folder = Path(name)
        said, source = random_model("bert-large", n_layers, folder)
        with open_rig(pair(940), said, source, folder / "bed") as rig:
            for mode in MODES:
                partition = split_of(mode, source.spec, HEADS, ROWS)
                rig.run(partition)
                comm, wire = rig.leader.comm.counters[SECONDARY], rig.primary.counters
                rig.run(partition)
                now, carried = rig.leader.comm.counters[SECONDARY], rig.primary.counters.since(wire)
                segments = [opening_segment(source.spec, partition)]
                segments += [layer_segment(source.spec, partition, k) for k in range(n_layers)]
                steps = [step for segment in segments for step in segment.steps]
                for src, payload, interface in (
                    (PRIMARY, now.sent_bytes - comm.sent_bytes, carried.sent_bytes),
                    (SECONDARY, now.received_bytes - comm.received_bytes, carried.received_bytes),
                ):
                    program = sum(n for (device, _), n in traffic(steps).items() if device == src)
                    rows.append(
                        {
                            "mode": mode,
                            "layers": n_layers,
                            "sent by": src,
                            "program": program,
                            "comm": payload,
                            "interface": interface,
                            "interface / comm": interface / payload,
                        }
                    )
    return rows


def _work(spec: EncoderSpec, mode: str, partition: Partition) -> dict[str, object]:
    """A layer's additions beyond the products' own, and all layers' weights."""
    found = stages(spec, partition, 0)
    added = sum(_added(stage) for stage in found)
    products = sum(flops(spec, partition, stage) for stage in found) - sum(_summed(stage) for stage in found)
    held = weight_bytes(spec, partition)
    whole = weight_bytes(spec, split_of("ws", spec, HEADS, ROWS))
    return {
        "mode": mode,
        "multiplications a layer": products // 2,
        "added sums a layer": added,
        "summed on every device, as in the paper": len(partition.participants) * added,
        "paper": PAPER_MORE_ADDITIONS if mode != "ws" else 0,
        "secondary's weights [MB]": held[SECONDARY] / 1e6,
        "primary's weights [MB]": held[PRIMARY] / 1e6,
        "secondary saves [%]": 100 * (1 - held[SECONDARY] / whole[SECONDARY]),
        "primary saves [%]": 100 * (1 - held[PRIMARY] / whole[PRIMARY]),
    }


def _memory(source: Encoder, plans: Mapping[str, Partition]) -> list[dict[str, object]]:
    """The secondary's savings in the 1D-tiled mode, by the memory that is counted; sizes in MB."""
    spec = source.spec
    (ws, tiled) = (weight_bytes(spec, plans[mode])[SECONDARY] for mode in ("ws", "1d"))
    layers = 4 * sum(prod(shape) for k in range(spec.n_layers) for _, shape in spec.layer(k).tensors)
    pooler = 4 * (spec.hidden + 1) * spec.hidden
    model = layers + 4 * sum(prod(shape) for shape in source.family.end_shapes().values()) + pooler
    beside = PAPER_WS_BYTES - model
    return [
        {"counted": what, "WS": before / 1e6, "1D": after / 1e6, "saved [%]": 100 * (1 - after / before)}
        for what, before, after in (
            ("ours: weights of layers that its stages read", ws, tiled),
            ("all weights of all layers in WS", layers, tiled),
            ("the whole model in WS (embeddings and pooler too), layers' shares in 1D", model, tiled),
            (
                f"the same, and {beside / 1e6:.0f} MB of process that the paper's 1.63 GB leave",
                PAPER_WS_BYTES,
                tiled + beside,
            ),
            (
                "the paper's Figure 7; without those, 1D is "
                f"{100 * (PAPER_1D_BYTES - beside) / layers:.0f} % of the layers",
                PAPER_WS_BYTES,
                PAPER_1D_BYTES,
            ),
        )
    ]


def _summed(stage: DeviceStage) -> int:
    """Numbers that a sum over devices reads, as `flops` counts them."""
    if stage.kind not in ("reduce", "activate"):
        return 0
    return sum(region.part.size for region in stage.reads)


def _added(stage: DeviceStage) -> int:
    """Additions of several devices' partial results: one less than the number of terms."""
    terms: dict[tuple[int, int], int] = {}
    for region in stage.reads:
        if "@" in region.tensor:
            columns = region.part.columns
            at = columns.start, columns.stop
            terms[at] = terms.get(at, 0) + 1
    return sum((n - 1) * stage.rows * (stop - start) for (start, stop), n in terms.items())
