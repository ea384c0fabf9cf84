"""Lower FusedAttention, softmax(scale * Q K^T + mask) V, and FusedRotary.

FusedAttention(q, k, v, mask?), float32, with attributes `q_view`, `k_view`, `v_view`, `mask_view` (see
compile.view): [batch, head, row, column], columns contiguous; `scale`; `is_causal` and `shift` (row t sees
keys up to t + shift); `group` (heads that share a key head); `is_empty_zero` (rows that see no key are 0, not
NaN); `y_view` (the view of the output tensor as [batch, head, row, column]).

FusedRotary(x, cos, sin) = x * cos + rotated(x) * sin in the first columns, as many as cos has, and x in the
others; float32, with attributes `x_view`, `cos_view`, `sin_view`: [batch, head, row, column].
"""

from pliant.compiler.executable.call import Call, FieldValue, Kernel, LoweredNode, Ref, Target
from pliant.compiler.rewrite.view import input_view
from pliant.ir.graph import Graph, Node
from pliant.kernels.attention import attention, rotary
from pliant.kernels.attention.attention import AttentionArgs


def _attention(node: Node, graph: Graph, target: Target) -> LoweredNode:
    names = ("q", "k", "v", "mask")[: len(node.inputs)]
    views = {
        name: input_view(graph, x, node.integers(f"{name}_view", None))
        for name, x in zip(names, node.inputs, strict=True)
    }
    y = node.outputs[0]
    batch, heads, rows, key_dim = views["q"].shape
    tokens, value_dim = views["v"].shape[-2:]
    fields: dict[str, FieldValue] = {}
    for name, view in {**views, "out": input_view(graph, y, node.integers("y_view", None))}.items():
        fields[name] = view.ref(4)
        for axis, stride in zip(("batch", "head", "row"), view.strides, strict=False):
            fields[f"{name}_{axis}"] = stride
    fields |= {
        "n_heads": heads,
        "group": node.integer("group", 1),
        "n_rows": rows,
        "n_tokens": tokens,
        "is_causal": node.integer("is_causal", 0),
        "shift": node.integer("shift", 0),
        "is_empty_zero": node.integer("is_empty_zero", 0),
        "scale": node.real("scale", 1.0),
    }
    isa, n = target.isa, batch * heads
    call = Call(
        kernel=Kernel(
            attention.attention_name(key_dim, value_dim),
            lambda row: attention.attention_ir(row, key_dim, value_dim),
        ),
        layout=AttentionArgs,
        fields=fields,
        n_units=attention.units(n, rows, isa),
        reads=tuple(dict.fromkeys(node.inputs)),
        writes=(y,),
        grain=attention.grain(n, rows, isa, target.n_threads),
        scratch_bytes=attention.scratch_bytes(key_dim, tokens, isa, value_dim),
        label=node.label,
    )
    return LoweredNode(calls=(call,))


def _rotary(node: Node, graph: Graph, target: Target) -> LoweredNode:
    names = ("x", "cos", "sin")
    views = {
        n: input_view(graph, x, node.integers(f"{n}_view")) for n, x in zip(names, node.inputs, strict=True)
    }
    batch, heads, rows, columns = views["x"].shape
    fields: dict[str, FieldValue] = {"out": Ref(node.outputs[0])}
    for name, view in views.items():
        fields[name] = view.ref(4)
        for axis, stride in zip(("batch", "head", "row"), view.strides, strict=False):
            fields[f"{name}_{axis}"] = stride
    half = views["cos"].shape[-1] // 2
    fields |= {"n_heads": heads, "n_rows": rows, "half": half, "n": columns}
    call = Call(
        Kernel(rotary.ROTARY, rotary.rotary_ir),
        rotary.RotaryArgs,
        fields,
        batch * heads * rows,
        tuple(dict.fromkeys(node.inputs)),
        node.outputs,
        grain=64,
        label=node.label,
    )
    return LoweredNode(calls=(call,))


RULES = {"FusedAttention": _attention, "FusedRotary": _rotary}
