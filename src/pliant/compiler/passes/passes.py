"""The ordered list of passes, and the function that runs them.

A pass is a function `Graph -> Graph` in a file of its own: the returned graph is valid, computes the same
outputs, and is the same object if nothing was changed. Passes can be switched off by name.
"""

from collections.abc import Callable, Collection

from pliant.compiler.fusion.fuse_attention import fuse_attention
from pliant.compiler.fusion.fuse_conv import fuse_conv
from pliant.compiler.fusion.fuse_gelu import fuse_gelu
from pliant.compiler.fusion.fuse_int8 import fuse_int8
from pliant.compiler.fusion.fuse_maps import fuse_maps
from pliant.compiler.fusion.fuse_matmul import fuse_matmul
from pliant.compiler.fusion.fuse_norm import fuse_norm
from pliant.compiler.fusion.fuse_rotary import fuse_rotary
from pliant.compiler.fusion.fuse_scales import fuse_scales
from pliant.compiler.passes.channels_last import channels_last
from pliant.compiler.passes.common_subexpressions import merge_common_subexpressions
from pliant.compiler.passes.dead_code import drop_dead_code
from pliant.compiler.passes.fold_batch_norm import fold_batch_norm
from pliant.compiler.passes.identities import drop_identities
from pliant.compiler.passes.mark_winograd import mark_winograd
from pliant.compiler.passes.push_pads import push_pads
from pliant.compiler.passes.push_transposes import push_transposes
from pliant.compiler.passes.reshapes import merge_reshapes
from pliant.compiler.passes.transposes import merge_transposes
from pliant.errors import InputError
from pliant.ir.graph import Graph

Pass = Callable[[Graph], Graph]

CLEANING: dict[str, Pass] = {
    "dead": drop_dead_code,
    "identities": drop_identities,
    "reshapes": merge_reshapes,
    "transposes": merge_transposes,
    "common": merge_common_subexpressions,
}
"""Repeated as a group until none changes the graph; one pass often exposes a pattern for another."""

FUSING: dict[str, Pass] = {
    "gelu": fuse_gelu,
    "norm": fuse_norm,
    "pads": push_pads,
    "rotary": fuse_rotary,
    "attention": fuse_attention,
    "int8": fuse_int8,
    "matmul": fuse_matmul,
    "scales": fuse_scales,
    "pushes": push_transposes,
    "batch_norm": fold_batch_norm,
    "conv": fuse_conv,
    "channels_last": channels_last,
    "winograd": mark_winograd,
    "maps": fuse_maps,  # last: it fuses the operators that the others look for
}
"""Run once each, in order, on the cleaned graph, which is cleaned again after each pass that changed it."""

_MAX_ROUNDS = 20


def simplify(graph: Graph, without: Collection[str] = ()) -> Graph:
    """`graph` after all passes except those named. Raises InputError for a name that is not a pass."""
    names = [*CLEANING, *FUSING]
    unknown = sorted(set(without) - set(names))
    if unknown:
        raise InputError(f"there are no passes {unknown}; the passes are {', '.join(names)}.")
    graph = _clean(graph, without)
    for name, fuse in FUSING.items():
        if name not in without and (fused := fuse(graph)) is not graph:
            graph = _clean(fused, without)
    return graph


def _clean(graph: Graph, without: Collection[str]) -> Graph:
    for _ in range(_MAX_ROUNDS):
        before = graph
        for name, clean in CLEANING.items():
            if name not in without:
                graph = clean(graph)
        if graph is before:
            break
    return graph
