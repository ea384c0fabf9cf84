"""Measure the inputs of a graph's products on examples, for coding its weights."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from pliant.arrays import Float32
from pliant.compiler.executable.call import Target
from pliant.compiler.executable.image import make_image
from pliant.compiler.passes.code_weights import matrix_reader
from pliant.compiler.passes.fold_weights import FoldedWeightCache, fold_weights
from pliant.compiler.passes.passes import simplify
from pliant.compiler.rewrite.coder import InputMoments, is_large, matrix_digest
from pliant.compiler.rewrite.operands import matmul_operands
from pliant.compiler.rewrite.view import View, read_view
from pliant.ir.graph import Graph
from pliant.ir.port import Port
from pliant.kernels.runtime.jit import Library
from pliant.kernels.runtime.thread_pool import ThreadPool
from pliant.models.onnx.bind.onnx_blocks import require_one_graph
from pliant.run.graph.array_stage import AllTensors, open_image
from pliant.run.graph.model_binder import BindingKey, ModelBinder
from pliant.run.session.ports import shapes_of


def measure_moments(
    groups: Iterable[tuple[Graph, Sequence[AllTensors]]],
    without: Collection[str],
    pool: ThreadPool,
    library: Library,
) -> InputMoments:
    """The moments of every product with a large constant matrix, summed over the examples.

    Each group is a graph and the examples that it runs on, in float32 after all passes but those in
    `without`. Beside the graph's weights, the inputs of all products are in memory for one example at a time;
    the result takes 4 K^2 bytes for each matrix.
    """
    moments: dict[bytes, Float32[np.ndarray, "K K"]] = {}
    folded = FoldedWeightCache()
    for graph, examples in groups:
        run = _open(simplify(fold_weights(graph, folded), without), pool, library)
        for x, gram in (made for feeds in examples for made in run(feeds)):
            moments[x] = moments.get(x, np.float32(0)) + gram
    return moments


def group_examples(
    binder: ModelBinder, inputs: Sequence[Port], source: str, examples: Iterable[AllTensors]
) -> Iterator[tuple[Graph, Sequence[AllTensors]]]:
    """Each graph of a model that the examples need, with those that run on it, in any order.

    Raises GraphError for a model in parts.
    """
    groups: dict[BindingKey, list[AllTensors]] = {}
    for feeds in examples:
        shapes = shapes_of(inputs, feeds)
        if binder.key(shapes, feeds) not in groups:
            binder.bind(shapes, feeds)  # may find more inputs whose values determine shapes
        groups.setdefault(binder.key(shapes, feeds), []).append(feeds)
    for group in groups.values():
        yield require_one_graph(binder.bind(shapes_of(inputs, group[0]), group[0]), source), group


def _open(
    graph: Graph, pool: ThreadPool, library: Library
) -> Callable[[AllTensors], Iterator[tuple[bytes, Float32[np.ndarray, "K K"]]]]:
    """A function from an example to the digest of each matrix and the moments of its inputs."""
    digests: dict[View, list[bytes]] = {}
    for node in graph.nodes:
        p = matmul_operands(graph, node)
        if p is not None and p.b.tensor in graph.constants and is_large(*p.b.shape):
            _, read_b = matrix_reader(graph, node, p)
            digests.setdefault(p.a, []).append(matrix_digest(read_b(graph.constants[p.b.tensor])))
    read = dict.fromkeys(a.tensor for a in digests if a.tensor not in graph.outputs)
    image = make_image(replace(graph, outputs=(*graph.outputs, *read)), Target(library.isa, pool.n_threads))
    stage = open_image(image, pool, library)

    def run(feeds: AllTensors) -> Iterator[tuple[bytes, Float32[np.ndarray, "K K"]]]:
        tensors = stage.walk(feeds, None)
        for a, of_matrices in digests.items():
            rows = read_view(tensors[a.tensor], a).reshape(-1, a.shape[-1])
            gram = rows.T @ rows
            yield from ((x, gram) for x in of_matrices)

    return run
