"""Open a graph: lower it, pack its weights, load its kernels, and bind it to an arena."""

from dataclasses import dataclass

from pliant.compiler.executable.binding import ProgramNumbers
from pliant.compiler.executable.encode_image import encode, image_kernels
from pliant.compiler.executable.image import Image
from pliant.compiler.executable.kernel_addresses import load_kernels
from pliant.errors import GraphError
from pliant.ir.graph import Graph
from pliant.ir.symbolic import plain_value
from pliant.kernels.runtime.jit import Library
from pliant.kernels.runtime.thread_pool import ThreadPool
from pliant.models.onnx.bind.onnx_symbolic import SymbolicGraph
from pliant.profile.system_memory import machine_bytes
from pliant.run.arena import Arena
from pliant.run.batches.packed_texts import PackedTexts
from pliant.run.graph.array_stage import ExecutableStage
from pliant.run.graph.graph_runner import GraphRunner, one_stage_runner
from pliant.run.graph.lowering import LoweredGraph, Lowering
from pliant.run.graph.symbolic_forms import SymbolicForm
from pliant.run.packed_weights import SharedWeights


@dataclass(frozen=True, slots=True, eq=False)
class GraphOpener:
    """Opens the graphs of one model, which share weights, one arena and their lowering."""

    lowering: Lowering
    weights: SharedWeights
    arena: Arena
    pool: ThreadPool
    library: Library
    source: str

    def compile(self, graph: Graph) -> GraphRunner:
        """The program of a graph, lowered now. Raises GraphError for one larger than the machine's memory."""
        lowered = self.lowering.lower(graph)
        check_memory(lowered.image, packed_bytes(lowered.image), self.source)
        return self.open(lowered)

    def open(self, lowered: LoweredGraph, texts: PackedTexts | None = None) -> GraphRunner:
        """The program of a lowered graph; `texts` are its extra inputs for texts without padding."""
        image, planned = lowered.image, lowered.scheduled
        at = load_kernels(image_kernels(image), self.library)
        weights = self.weights.pack(image, planned.graph.constants)
        stage = ExecutableStage(encode(image), weights, at, self.pool, self.arena, texts)
        return one_stage_runner(stage, self.pool, planned.report, lowered.sizes)

    def open_form(self, graph: SymbolicGraph) -> SymbolicForm:
        """The form of a graph with open sizes. Raises as `compile`, and the errors of rules that do not
        support symbols.
        """
        lowered = self.lowering.lower(graph.graph)
        image = lowered.image
        check_memory(image, packed_bytes(image), self.source)
        weights = self.weights.pack(image, lowered.scheduled.graph.constants)
        at = load_kernels(image_kernels(image), self.library)
        return SymbolicForm(graph, lowered, weights, at, self.pool, self.arena)


def packed_bytes(image: Image) -> int:
    """Bytes of its packed weights."""
    return sum(packed.n_bytes for packed in image.packed.values())


def check_memory(sized: Image | ProgramNumbers, packed_bytes: int, source: str) -> None:
    """Raise GraphError for a program that needs more than the machine's memory."""
    wanted = sized.arena_bytes + packed_bytes + sum(plain_value(t.n_bytes) for t in sized.outputs.values())
    there = machine_bytes()
    if wanted > there:
        raise GraphError(
            f"{source} needs {wanted / 1e9:.1f} GB for its tensors at these shapes; this machine has "
            f"{there / 1e9:.1f} GB. Feed smaller shapes."
        )
