"""Run an encoder part by part on one device, for tests of families, weights and stores."""

from collections.abc import Mapping

import numpy as np

from pliant.compiler.executable.call import Target
from pliant.compiler.executable.fragment import fragment_image
from pliant.ir.graph import Graph
from pliant.kernels.emit.isa import host_isa
from pliant.kernels.runtime.jit import Library
from pliant.kernels.runtime.thread_pool import ThreadPool
from pliant.models.encoder.encoder_architecture import AnswerKind
from pliant.models.encoder.encoder_parts import whole_layer_part
from pliant.models.encoder.encoder_source import Encoder
from pliant.run.graph.array_stage import open_image


def run_encoder(
    source: Encoder, feeds: Mapping[str, np.ndarray], answer: AnswerKind | None = None
) -> np.ndarray:
    """The answer to `feeds`, every layer whole."""
    library = Library(host_isa())
    pool = ThreadPool(1, library)

    def run(graph: Graph, feeds: Mapping[str, np.ndarray]) -> np.ndarray:
        image = fragment_image(graph, Target(library.isa))
        (result,) = open_image(image, pool, library).run(feeds).values()
        return result

    prepared = source.prepare(feeds)
    x = run(source.input(prepared.rows), prepared.feeds)
    layer = whole_layer_part(source.spec, prepared.rows)
    for i in range(source.spec.n_layers):
        x = run(source.graph(layer, i), {"x": x})
    return run(source.head(prepared.rows, answer), {"x": x})
