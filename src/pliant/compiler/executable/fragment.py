"""Compile a part of a layer to an image, from its shapes alone."""

from pliant.compiler.executable.call import Target
from pliant.compiler.executable.image import Image, make_image
from pliant.compiler.layout.row_gaps import insert_gaps
from pliant.compiler.passes.passes import simplify
from pliant.compiler.rewrite.execution_order import lower_peak
from pliant.ir.graph import Graph

_BY_VALUE = ("common", "identities")
"""Passes that depend on values: equal biases, or a norm of ones, would make the images of layers differ."""


def fragment_image(graph: Graph, target: Target) -> Image:
    """`graph` fused, scheduled by rule and lowered, ready for `run.graph.array_stage.open_image`.

    The result depends on shapes, not on weight values: graphs of the same part give images that differ only
    in `constants` and `packed`. Raises GraphError if an operator cannot be lowered.
    """
    return make_image(fragment_graph(graph), target)


def fragment_graph(graph: Graph) -> Graph:
    """`graph` fused and scheduled by rule: the graph from which a layer's image is lowered."""
    return lower_peak(insert_gaps(simplify(graph, _BY_VALUE)))
