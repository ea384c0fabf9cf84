"""Measure the inputs of a graph's products on examples, for coding its weights."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from pliant.arrays import Float32
from pliant.compiler.executable.call import Target
from pliant.compiler.executable.image import make_image
from pliant.compiler.passes.code_weights import matrix_reader
from pliant.compiler.rewrite.coder import InputMoments, is_large, matrix_digest
from pliant.compiler.rewrite.operands import MatMulOperands, matmul_operands
from pliant.compiler.rewrite.view import read_view
from pliant.ir.graph import Graph, Node
from pliant.kernels.runtime.jit import Library
from pliant.kernels.runtime.thread_pool import ThreadPool
from pliant.run.graph.array_stage import AllTensors, open_image


def measure_moments(
    examples: Sequence[AllTensors],
    simplified: Callable[[AllTensors], Graph],
    pool: ThreadPool,
    library: Library,
) -> InputMoments:
    """The moments of every product with a large constant matrix, summed over the examples.

    `simplified` returns the graph for the shapes of an example after all passes, in float32. Its tensors are
    in memory for one example at a time; the result takes 4 K^2 bytes for each matrix.
    """
    moments: dict[bytes, Float32[np.ndarray, "K K"]] = {}
    for feeds in examples:
        graph = simplified(feeds)
        products = _products(graph)
        read = dict.fromkeys(p.a.tensor for _, p in products if p.a.tensor not in graph.outputs)
        image = make_image(
            replace(graph, outputs=(*graph.outputs, *read)), Target(library.isa, pool.n_threads)
        )
        tensors = open_image(image, pool, library).walk(feeds, None)
        for node, p in products:
            key = matrix_digest(matrix_reader(graph, node, p)[1](graph.constants[p.b.tensor]))
            rows = read_view(tensors[p.a.tensor], p.a).reshape(-1, p.b.shape[0])
            moments[key] = moments.get(key, np.float32(0)) + rows.T @ rows
    return moments


def _products(graph: Graph) -> list[tuple[Node, MatMulOperands]]:
    found = ((node, matmul_operands(graph, node)) for node in graph.nodes)
    return [
        (node, p)
        for node, p in found
        if p is not None and p.b.tensor in graph.constants and is_large(*p.b.shape)
    ]
