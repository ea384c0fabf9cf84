"""The text of executables: every call with its arguments, every tensor's place, the arena.

Protects: what the compiler makes of a graph. Passes, layouts, lowering and placement are decided for fixed
instruction sets and by fixed costs, so the texts are equal on every machine.
Update: `pytest tests/guards/test_executables.py --update-golden`; the commit says what the compiler does
otherwise.
"""

from collections.abc import Callable
from dataclasses import asdict
from hashlib import sha256

import numpy as np
import pytest

from pliant.api.resolve import resolve
from pliant.compiler.executable.call import Target
from pliant.compiler.executable.fragment import fragment_image
from pliant.compiler.executable.image import Image, make_image
from pliant.compiler.executable.recurrent_stages import recurrent_form
from pliant.compiler.executable.stage import coded_form
from pliant.compiler.rules.rules import RULES
from pliant.ir.graph import Graph
from pliant.ir.partition import DeviceGrid, Mode, Partition, Share
from pliant.kernels.emit.isa import AVX2, AVX512_VNNI, NEON, host_isa
from pliant.kernels.runtime.jit import Library
from pliant.kernels.runtime.thread_pool import ThreadPool
from pliant.models.encoder.encoder_graph import embedding_graph, head_graph, layer_graph
from pliant.models.encoder.part_builder import EncoderPart
from pliant.models.hf.checkpoint import open_checkpoint
from pliant.models.onnx.onnx_file import open_onnx
from pliant.models.recurrent.recurrent_graph import recurrent_graph
from pliant.models.spec import ModelSpec
from pliant.plan.split.stage_graphs import graph_part
from pliant.plan.split.stages import stages
from pliant.profile.form_costs import CostFile
from pliant.run.graph.schedule_graph import GraphScheduler, ScheduledGraph, ScheduleKind
from tests.compiler.family_models import bert, written
from tests.compiler.layout.models import a_network
from tests.guards.texts import checked_executable
from tests.models.one_graph import bind
from tests.plan.splits import bert as encoder_spec

Golden = Callable[[str, str], None]

pytestmark = pytest.mark.usefixtures("unchecked_shapes")

TARGETS = {"avx2": Target(AVX2, 2), "avx512+avx512vnni": Target(AVX512_VNNI, 2), "neon": Target(NEON, 1)}
TOKENS = 40


class _Prices(dict[str, float]):
    """A price for every key, 1 us to 1 ms, that follows from its text alone."""

    def __missing__(self, key: str) -> float:
        return 10 ** (3 * int(sha256(key.encode()).hexdigest()[:4], 16) / 0xFFFF - 6)

    def get(self, key: str, default: object = None) -> float:  # type: ignore[override]
        return self[key]

    def __contains__(self, key: object) -> bool:
        return True


class _FixedCosts:
    """Stands for the file of measured times, so that nothing is measured."""

    def load(self) -> dict[str, float]:
        return _Prices()

    def add(self, table: dict[str, float]) -> None:
        raise AssertionError(f"{len(table)} forms were measured")


def _planned(model: object, kind: ScheduleKind) -> ScheduledGraph:
    """An ONNX model after all passes, scheduled."""
    costs: CostFile = _FixedCosts()  # type: ignore[assignment]
    library = Library(host_isa())
    with ThreadPool(1, library) as pool:
        graph = bind(open_onnx(model), {}, {}, supported=RULES, shapes={}, max_bytes=1 << 30)
        return GraphScheduler(kind, pool, library, costs).schedule(graph)


def _together(texts: dict[str, str]) -> str:
    return "\n".join(f"# {name}\n{text}" for name, text in texts.items())


@pytest.fixture(scope="module")
def sst2() -> ModelSpec:
    """What the shipped model is made of."""
    return open_checkpoint(resolve("sst2").path).spec


def test_executables_of_the_shipped_model_are_the_same(sst2: ModelSpec, golden: Golden) -> None:
    """A layer at two widths, of resident and of rounded weights; what stands before and behind the layers."""
    texts = {
        f"{name}, {width} slices, {compute}": checked_executable(
            coded_form(layer_graph(sst2, width, TOKENS, compute), target).image
        )
        for name, target in TARGETS.items()
        for width, compute in ((12, "fp32"), (5, "int8"))
    }
    texts["embedding"] = checked_executable(
        coded_form(embedding_graph(sst2, "codes", TOKENS), TARGETS["avx2"]).image
    )
    texts["head"] = checked_executable(coded_form(head_graph(sst2, TOKENS), TARGETS["avx2"]).image)
    golden("guards/executables_sst2.txt", _together(texts))


def test_executables_of_an_encoder_from_onnx_are_the_same(golden: Golden) -> None:
    """Two layers of MiniLM's sizes, as an exporter writes them: fused, coded in no way, placed."""
    graph = _planned(written(bert(n_layers=2, width=384, heads=12, ffn=1536)), "static").graph
    texts = {name: checked_executable(make_image(graph, target)) for name, target in TARGETS.items()}
    golden("guards/executables_minilm.txt", _together(texts))


@pytest.mark.parametrize("kind", ["static", "none", "paper", "exact"])
def test_schedules_by_fixed_costs_are_the_same(kind: ScheduleKind, golden: Golden) -> None:
    """Layouts and loops that each chooser takes where every form has a given price."""
    models = {"encoder": written(bert(1)), "convolutions": a_network()}
    texts = {}
    for name, model in models.items():
        planned = _planned(model, kind)
        texts[name] = f"{_counts(planned)}\n{checked_executable(make_image(planned.graph, TARGETS['avx2']))}"
    golden(f"guards/executables_{kind}.txt", _together(texts))


def _counts(planned: ScheduledGraph) -> str:
    """What a schedule chose from and promises; there is no report of one that goes by rule."""
    if planned.report is None:
        return "by rule"
    counts = {name: value for name, value in asdict(planned.report).items() if name != "planning_s"}
    return ", ".join(
        f"{name} {value:.9g}" if name.endswith("_s") else f"{name} {value}" for name, value in counts.items()
    )


def test_executables_of_a_recurrent_model_are_the_same(golden: Golden) -> None:
    """The shipped LSTM, whose calls are cut to the words of a text."""
    source = resolve("imdb-lstm").source
    graph = recurrent_graph(source.spec, source.weights, 64)
    texts = {
        name: checked_executable(recurrent_form(graph, target).image) for name, target in TARGETS.items()
    }
    golden("guards/executables_lstm.txt", _together(texts))


SHARES: dict[Mode, Partition] = {
    "ws": Partition("ws", "a", (Share("a", 3, 23), Share("b", 1, 17)), TOKENS),
    "1d": Partition("1d", "a", (Share("a", 3, 23, 64), Share("b", 1, 17, 128)), TOKENS),
    "2d": Partition(
        "2d",
        "a",
        (Share("a", 3, 23, 64), Share("b", 1, 17, 128)),
        TOKENS,
        DeviceGrid((("a",), ("b",)), outputs=(64,), hidden=(40, 24)),
    ),
}


@pytest.mark.parametrize("mode", SHARES)
def test_executables_of_a_clusters_share_are_the_same(mode: Mode, golden: Golden) -> None:
    """What a member with one of four heads runs in each layer, and what the other one runs."""
    spec, partition = encoder_spec(64, 4, 192, 2), SHARES[mode]
    texts = {
        f"{stage.device} {stage.kernel}": checked_executable(_image(graph_part(spec, partition, stage)))
        for stage in stages(spec, partition, 1)
    }
    golden(f"guards/executables_share_{mode}.txt", _together(texts))


def _image(part: EncoderPart) -> Image:
    blanks = {name: np.zeros(piece.shape, np.float32) for name, piece in part.pieces.items()}
    constants = {**part.constants, **blanks}
    graph = Graph(part.nodes, part.inputs, part.outputs, part.types, constants, part.name)
    return fragment_image(graph, TARGETS["avx2"])
