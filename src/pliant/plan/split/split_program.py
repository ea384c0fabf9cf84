"""A partition as a program: every device's stages, and the messages between them.

Messages follow from regions: a region that one stage reads and another device computed is sent once.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from pliant.ir.partition import Partition
from pliant.ir.program import Compute, Exchange, Program, Segment, Step, Tensor, TensorPart
from pliant.models.encoder.encoder_spec import EncoderSpec
from pliant.plan.split.stages import TensorRegion, check, input_part, stages

ITEMSIZE = 4
INPUT, HEAD = "input", "head"
"""The kernels that run only on the primary, before the first layer and after the last."""


def split(spec: EncoderSpec, partition: Partition, first: int = 0) -> Program:
    """Return the run from layer `first` on: [input, its broadcast], one segment per layer, [head].

    Before the segment of layer K, the primary holds all of `x.K`. With `first` above 0 there is no input
    stage: only the primary holds `x.first` already. Raises InputError if the partition does not fit the
    model.
    """
    layers = [layer_segment(spec, partition, k) for k in range(first, spec.n_layers)]
    return program_of(
        spec,
        partition,
        (opening_segment(spec, partition, first), *layers, closing_segment(spec, partition)),
    )


def opening_segment(spec: EncoderSpec, partition: Partition, first: int = 0) -> Segment:
    """Return the segment that distributes `x.first`; if it is the model's input, the primary computes it."""
    check(spec, partition)
    steps = _SegmentBuilder()
    if first == 0:
        work = Compute(INPUT, rows=partition.tokens, device=partition.primary)
        made = steps.add(Step(f"{partition.primary}/cpu", work))
    else:
        made = None
    _boundary(steps, spec, partition, first, made)
    for device in partition.devices:
        _enter(steps, spec, partition, first, device)
    return Segment(tuple(steps.steps), (f"x.{first}",))


def layer_segment(
    spec: EncoderSpec, partition: Partition, layer: int, lacking: Collection[str] = ()
) -> Segment:
    """Return layer `layer`: from `x.layer` to `x.layer+1`, complete on the primary and where needed next.

    Devices in `lacking` hold nothing of `x.layer` (they are new, or have other work): the primary sends it
    first. The last layer's result goes only to the primary.
    """
    steps = _SegmentBuilder()
    _boundary(steps, spec, partition, layer, None)
    for device in partition.devices:
        part = input_part(spec, partition, device)
        if device in lacking and device != partition.primary:
            _enter(steps, spec, partition, layer, device)
        elif part is not None:
            steps.give(device, TensorRegion(f"x.{layer}", part), None)
    for stage in stages(spec, partition, layer):
        waits = [i for region in stage.reads for i in steps.need(stage.device, region)]
        work = Compute(stage.kernel, layer, stage.width, stage.rows, stage.device)
        after = tuple(sorted(set(waits)))
        at = steps.add(Step(f"{stage.device}/cpu", work, after))
        for region in stage.writes:
            steps.make(stage.device, region, at)
    is_last = layer + 1 == spec.n_layers
    for device in [partition.primary] if is_last else partition.devices:
        _enter(steps, spec, partition, layer + 1, device)
    return Segment(tuple(steps.steps), (f"x.{layer + 1}",))


def closing_segment(spec: EncoderSpec, partition: Partition) -> Segment:
    """Return the segment in which the primary computes the answer from the last layer's result."""
    work = Compute(HEAD, rows=partition.tokens, device=partition.primary)
    return Segment((Step(f"{partition.primary}/cpu", work),))


def program_of(spec: EncoderSpec, partition: Partition, segments: Sequence[Segment]) -> Program:
    """Return a program of one partition's segments, with the tensors that they name."""
    m, devices = partition.tokens, partition.participants
    shapes = {f"x.{k}": spec.hidden for k in range(spec.n_layers + 1)} | {"attended": spec.attended}
    shapes |= {f"mixed@{d}": spec.inner for d in devices}
    for f in range(len(spec.template.feed_forwards)):
        shapes |= {f"h.{f}": spec.inner, f"kept.{f}": spec.inner, f"act.{f}": spec.ffn}
        shapes |= {f"up.{f}@{d}": spec.ffn for d in devices}
        shapes |= {f"down.{f}@{d}": spec.inner for d in devices}
    named = {live for segment in segments for live in segment.live} | {
        step.work.tensor for segment in segments for step in segment.steps if isinstance(step.work, Exchange)
    }
    tensors = tuple(Tensor(name, (m, n), ITEMSIZE) for name, n in shapes.items() if name in named)
    return Program(tuple(segments), tensors, ())


def traffic(steps: Iterable[Step]) -> dict[tuple[str, str], int]:
    """Return the bytes that each device sends, by (device, point): "x", "attended", "mixed", "h.0", ..."""
    sent: dict[tuple[str, str], int] = {}
    for step in steps:
        if isinstance(step.work, Exchange):
            assert isinstance(step.work.n_bytes, int), step.work
            key = step.work.src, exchange_point(step.work.tensor)
            sent[key] = sent.get(key, 0) + step.work.n_bytes
    return sent


def exchange_point(tensor: str) -> str:
    """Return a tensor's role, without its device and layer."""
    name = tensor.partition("@")[0]
    return "x" if name.startswith("x.") else name


def _boundary(
    steps: "_SegmentBuilder", spec: EncoderSpec, partition: Partition, layer: int, at: int | None
) -> None:
    """Record that the primary holds all of the layer's input."""
    whole = TensorPart(0, partition.tokens, 0, spec.hidden)
    steps.make(partition.primary, TensorRegion(f"x.{layer}", whole), at)


def _enter(
    steps: "_SegmentBuilder", spec: EncoderSpec, partition: Partition, layer: int, device: str
) -> None:
    part = input_part(spec, partition, device)
    if part is not None:
        steps.need(device, TensorRegion(f"x.{layer}", part))


@dataclass(slots=True)
class _SegmentBuilder:
    """A segment under construction: the regions that devices computed or hold, and after which step."""

    steps: list[Step] = field(default_factory=list)
    made: dict[str, list[tuple[str, TensorPart, int | None]]] = field(default_factory=dict)
    held: dict[tuple[str, str], list[tuple[TensorPart, int | None]]] = field(default_factory=dict)

    def add(self, step: Step) -> int:
        self.steps.append(step)
        return len(self.steps) - 1

    def make(self, device: str, region: TensorRegion, at: int | None) -> None:
        """Record that `device` computes a region in step `at`, or has it from the start."""
        self.made.setdefault(region.tensor, []).append((device, region.part, at))
        self.give(device, region, at)

    def give(self, device: str, region: TensorRegion, at: int | None) -> None:
        self.held.setdefault((device, region.tensor), []).append((region.part, at))

    def need(self, device: str, region: TensorRegion) -> list[int]:
        """Return the steps after which `device` holds all of a region; adds the sends of missing parts."""
        held = self.held.get((device, region.tensor), [])
        waits = []
        for part, at in held:
            if part.covers(region.part):
                return [] if at is None else [at]
            if at is not None and part.shared(region.part) is not None:
                waits.append(at)
        has = {part for part, _ in held}
        for maker, part, at in list(self.made.get(region.tensor, ())):
            wanted = part.shared(region.part)
            if maker == device or wanted is None or wanted in has:
                continue
            work = Exchange(region.tensor, ITEMSIZE * wanted.size, maker, device, wanted)
            after = () if at is None else (at,)
            waits.append(self.add(Step(f"net:{maker}->{device}", work, after)))
            self.give(device, TensorRegion(region.tensor, wanted), waits[-1])
        return waits
