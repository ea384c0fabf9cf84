"""Programs of split layers: the paper's bytes, and what has to hold of every partition."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pliant.errors import InputError
from pliant.ir.partition import DeviceGrid, Partition, Share
from pliant.ir.program import Compute, Exchange, Program, Segment, TensorPart
from pliant.ir.projection import project
from pliant.models.encoder.encoder_spec import EncoderSpec
from pliant.plan.split.split_program import layer_segment, opening_segment, split, traffic
from pliant.plan.split.stages import TensorRegion, input_part, stages
from tests.plan.splits import bert, mobilebert, problem

LARGE = bert(1024, 16, 4096, 24)


def uneven(mode: str, ffn: int = 0) -> Partition:
    """Table 3: 2 of 16 heads and 32 of 256 rows on the primary."""
    shares = (Share("a", 2, 32, ffn // 8), Share("b", 14, 224, ffn - ffn // 8))
    return Partition(mode, "a", shares, 256)  # type: ignore[arg-type]


def test_weight_stationary_moves_the_papers_bytes() -> None:
    """Table 3 of Hepti (its GB are MB) and issue part 3: 114,688 B each way, then 131,072 B and 917,504 B."""
    sent = traffic(layer_segment(LARGE, uneven("ws"), 3).steps)
    assert sent == {
        ("a", "attended"): 114_688,
        ("b", "attended"): 114_688,
        ("a", "x"): 131_072,
        ("b", "x"): 917_504,
    }


def test_one_dimensional_tiles_move_the_papers_bytes() -> None:
    """Issue part 3: reduce-scatter and all-gather move 1,048,576 B a device, at each of two points."""
    sent = traffic(layer_segment(LARGE, uneven("1d", 4096), 3).steps)
    for device in "ab":
        assert sent[device, "mixed"] + sent[device, "h.0"] == 1_048_576
        assert sent[device, "down.0"] + sent[device, "x"] == 1_048_576


def test_the_last_layer_sends_its_result_to_the_primary_alone() -> None:
    """The head runs there; nobody else reads it."""
    assert ("a", "x") not in traffic(layer_segment(LARGE, uneven("ws"), 23).steps)


@pytest.mark.parametrize("mode", ["ws", "1d", "2d"])
def test_a_device_alone_sends_nothing(mode: str) -> None:
    """Down to the primary alone is what a cluster falls back on."""
    grid = DeviceGrid((("a",),), (12,), (12,)) if mode == "2d" else None
    share = Share("a", 4, 5, 0 if mode == "ws" else 20)
    program = split(bert(), Partition(mode, "a", (share, Share("b")), 5, grid))  # type: ignore[arg-type]
    assert not traffic(program.steps)
    assert program.lanes == ("a/cpu",)


def test_a_device_without_heads_gets_its_rows_only() -> None:
    """Only heads read the whole input; sending it to others would waste the link."""
    p = Partition("ws", "a", (Share("a", 4, 3), Share("b", 0, 2)), 5)
    assert traffic(opening_segment(bert(), p).steps) == {("a", "x"): 2 * 12 * 4}
    assert traffic(layer_segment(bert(), p, 0).steps) == {
        ("a", "attended"): 2 * 12 * 4,
        ("b", "x"): 2 * 12 * 4,
    }


def test_a_new_device_is_sent_what_it_lacks() -> None:
    """A worker that joins at a boundary holds nothing of the layer's input."""
    p = Partition("ws", "a", (Share("a", 2, 3), Share("b", 2, 2)), 5)
    here, joined = layer_segment(bert(), p, 0), layer_segment(bert(), p, 0, {"b"})
    assert traffic(joined.steps)["a", "x"] - traffic(here.steps)["a", "x"] == 5 * 12 * 4
    (attend,) = (s for s in joined.steps if s.work == Compute("attend", 0, 2, 5, "b"))
    assert joined.steps[attend.after[0]].work == Exchange("x.0", 240, "a", "b", TensorPart(0, 5, 0, 12))


@pytest.mark.parametrize(
    ("partition", "message"),
    [
        (Partition("ws", "a", (Share("a", 5, 4),), 4), "5 heads do not make the model's 4"),
        (Partition("1d", "a", (Share("a", 4, 4, 19),), 4), "19 columns do not make the model's 20"),
        (Partition("ws", "a", (Share("a", 4, 600),), 600), "600 rows are too many"),
        (Partition("2d", "a", (Share("a", 4, 4, 20),), 4, DeviceGrid((("a",),), (9,), (9,))), "blocks of"),
    ],
)
def test_a_partition_of_another_model_is_refused(partition: Partition, message: str) -> None:
    """Sizes cross the network: a wrong one must be named, not run."""
    with pytest.raises(InputError, match=message):
        split(bert(), partition)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**6))
def test_every_stage_holds_what_it_reads(seed: int) -> None:
    """Replayed on sets of numbers: what is read was made there or has come, and has so by its own waits."""
    spec, partition = problem(seed)
    _Replay(spec, partition).run()


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**6))
def test_every_device_has_its_own_part_of_the_program(seed: int) -> None:
    """No step waits for another device without a message, and lanes keep their order."""
    spec, partition = problem(seed)
    for segment in split(spec, partition).segments:
        for device in partition.devices:
            own = project(segment, device).segment.steps
            for lane in {step.lane for step in own}:
                assert [s.work for s in own if s.lane == lane] == [
                    s.work for s in segment.steps if s.lane == lane
                ]


class _Replay:
    """Which numbers of every tensor each device holds, as masks; steps see only what they wait for."""

    def __init__(self, spec: EncoderSpec, partition: Partition) -> None:
        self.spec, self.partition = spec, partition
        self.program = split(spec, partition)
        self.shape = partition.tokens, max(spec.hidden, spec.ffn, spec.attended)
        self.held: dict[tuple[str, str], np.ndarray] = {}
        self.sent: Counter[tuple[str, str, str, int, int]] = Counter()

    def run(self) -> None:
        for k, segment in enumerate(self.program.segments):
            self._segment(segment, k - 1)
            layer = min(k, self.spec.n_layers)
            whole = TensorPart(0, self.partition.tokens, 0, self.spec.hidden)
            assert self.has(self.partition.primary, TensorRegion(f"x.{layer}", whole))
            for device in self.partition.devices if layer < self.spec.n_layers else ():
                part = input_part(self.spec, self.partition, device)
                assert part is None or self.has(device, TensorRegion(f"x.{layer}", part))

    def _segment(self, segment: Segment, layer: int) -> None:
        known = stages(self.spec, self.partition, layer) if 0 <= layer < self.spec.n_layers else ()
        by_work = {(s.device, s.kernel): s for s in known}
        alive = {live for before in self.program.segments[: layer + 1] for live in before.live[-1:]}
        self.held = {key: mask for key, mask in self.held.items() if key[1] in alive}
        start = {key: mask.copy() for key, mask in self.held.items()}
        gains: list[dict[tuple[str, str], np.ndarray]] = []
        for step in segment.steps:
            # What a step may rely on: the segment's start, and what those it waits for rely on and add.
            sure = {key: mask.copy() for key, mask in start.items()}
            for j in step.after:
                for key, mask in gains[j].items():
                    sure[key] = sure.get(key, np.zeros(self.shape, bool)) | mask
            match step.work:
                case Exchange(tensor=tensor, src=src, dst=dst, part=TensorPart() as part):
                    assert self.covers(sure.get((src, tensor)), part), step
                    self._count(src, dst, tensor, part)
                    self._gain(sure, dst, TensorRegion(tensor, part))
                case Compute(kernel="input", device=device):
                    whole = TensorPart(0, self.partition.tokens, 0, self.spec.hidden)
                    self._gain(sure, device, TensorRegion("x.0", whole))
                case Compute(kernel="head"):
                    pass
                case Compute(kernel=kernel, device=device):
                    stage = by_work.pop((device, kernel))
                    for region in stage.reads:
                        assert self.covers(sure.get((device, region.tensor)), region.part), (step, region)
                    for region in stage.writes:
                        self._gain(sure, device, region)
            gains.append(sure)
        assert not by_work, "stages without a step"

    def _gain(self, sure: dict[tuple[str, str], np.ndarray], device: str, region: TensorRegion) -> None:
        for known in (sure, self.held):
            mask = known.setdefault((device, region.tensor), np.zeros(self.shape, bool))
            mask[region.part.rows.start : region.part.rows.stop, self._columns(region.part)] = True

    def _count(self, src: str, dst: str, tensor: str, part: TensorPart) -> None:
        """No number goes to a device that holds it, nor twice."""
        mask = self.held.get((dst, tensor))
        assert mask is None or not mask[part.rows.start : part.rows.stop, self._columns(part)].any(), (
            dst,
            tensor,
        )

    def has(self, device: str, region: TensorRegion) -> bool:
        return self.covers(self.held.get((device, region.tensor)), region.part)

    def covers(self, mask: np.ndarray | None, part: TensorPart) -> bool:
        return mask is not None and bool(mask[part.rows.start : part.rows.stop, self._columns(part)].all())

    @staticmethod
    def _columns(part: TensorPart) -> slice:
        return slice(part.columns.start, part.columns.stop)


def test_a_split_program_is_bound_and_names_its_tensors() -> None:
    """Sizes are numbers when a cluster plans, and messages have to name tensors of known shape."""
    program = split(mobilebert(), Partition("1d", "b", (Share("a", 3, 2, 9), Share("b", 1, 3, 11)), 5))
    assert isinstance(program, Program)
    assert not program.extents
    shapes = {t.name: t.shape for t in program.tensors}
    assert shapes["mixed@a"] == (5, 8)
    assert {s.work.tensor for s in program.steps if isinstance(s.work, Exchange)} <= set(shapes)
