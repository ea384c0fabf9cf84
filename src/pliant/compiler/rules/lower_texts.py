"""Lower attention over several texts with concatenated rows.

SelfAttention(q, k, v, blocks, mask?) is FusedAttention of each text with itself; `blocks`
(kernels/attention/attention_texts.py) gives the rows of each text, and a mask has a batch index for each
text. With the attribute `extent` it runs over the actual number of texts. It is not allowed in model files:
the kernel does not check its row numbers.
"""

from collections.abc import Sequence
from dataclasses import replace

from pliant.compiler.executable.call import Kernel, LoweredNode, Ref, RowExtent, Target
from pliant.compiler.rewrite.view import input_view
from pliant.compiler.rules import lower_attention as fused
from pliant.ir.graph import Graph, Node
from pliant.kernels.attention import attention_texts

_SIZES = ("n_rows", "n_tokens")
"""Fields of AttentionArgs that differ between texts."""


def _attention(node: Node, graph: Graph, target: Target) -> LoweredNode:
    q, k, v, blocks, *mask = node.inputs
    (alone,) = fused.RULES["FusedAttention"](replace(node, inputs=(q, k, v, *mask)), graph, target).calls
    _, heads, tokens, head_dim = input_view(graph, q, node.integers("q_view", None)).shape
    isa = target.isa

    def share(lengths: Sequence[int]) -> tuple[int, int]:
        n = attention_texts.units(heads, lengths, isa)
        return n, attention_texts.grain(heads, lengths, isa, target.n_threads)

    call = replace(
        alone,
        kernel=Kernel(
            attention_texts.texts_name(head_dim), lambda row: attention_texts.texts_ir(row, head_dim)
        ),
        layout=attention_texts.TextsArgs,
        fields={f"attention.{name}": x for name, x in alone.fields.items() if name not in _SIZES}
        | {"blocks": Ref(blocks)},
        reads=(*alone.reads, blocks),
        scratch_bytes=attention_texts.scratch_bytes(head_dim, tokens, isa),
        extent=RowExtent((), share) if node.flag("extent") else None,
    )
    return LoweredNode((call,))


RULES = {"SelfAttention": _attention}
