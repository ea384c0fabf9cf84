"""The parts of an encoder layer that devices divide among them, for any family.

Tensors by name: `x` [rows, hidden] enters a layer; `attended` [rows, n * head_dim] is the output of heads;
`partial` and `partial.i` [rows, inner] are products to be summed, without bias; `h` [rows, inner] is the
input of the next feed forward and `y` [rows, inner] is added to its result; `out` [rows, hidden] leaves the
layer. A post-norm layer has h = y, and calls it `h` where it is an output.
"""

from math import sqrt

from pliant.ir.graph import Attribute
from pliant.models.encoder.encoder_spec import EncoderSpec, FeedForward, LinearSpec, Narrowing
from pliant.models.encoder.part_builder import EncoderPart, IndexRange, PartBuilder


def whole_layer_part(spec: EncoderSpec, rows: int) -> EncoderPart:
    """`x` to `out`: a whole layer on one device."""
    d = PartBuilder("layer")
    x = d.input("x", rows, spec.hidden)
    attended = _attend(d, spec, x, IndexRange(0, spec.n_heads))
    return d.part(out=_row_wise(d, spec, attended, x))


def attention_part(spec: EncoderSpec, rows: int, heads: IndexRange) -> EncoderPart:
    """`x` to the `attended` columns of `heads` (Hepti 4.2: R of WS), over all rows."""
    d = PartBuilder("attend")
    x = d.input("x", rows, spec.hidden)
    return d.part(attended=_attend(d, spec, x, heads))


def row_wise_part(spec: EncoderSpec, rows: int) -> EncoderPart:
    """`attended` [rows, all heads] and `x` of the same rows to `out`: everything row-wise (L of WS)."""
    d = PartBuilder("rest")
    attended, x = d.input("attended", rows, spec.attended), d.input("x", rows, spec.hidden)
    return d.part(out=_row_wise(d, spec, attended, x))


def attention_product_part(spec: EncoderSpec, rows: int, heads: IndexRange) -> EncoderPart:
    """`x` to the `partial` output product of `heads` (Megatron's attention block)."""
    d = PartBuilder("attend, mix")
    x = d.input("x", rows, spec.hidden)
    attended = _attend(d, spec, x, heads)
    return d.part(partial=d.linear(attended, spec.template.output, columns=_columns(spec, heads)))


def feed_forward_part(spec: EncoderSpec, rows: int, forward: int, columns: IndexRange) -> EncoderPart:
    """`h` to the `partial` result of some columns of one of the layer's feed forwards."""
    d = PartBuilder(f"feed forward {forward}")
    h, used = d.input("h", rows, spec.inner), spec.template.feed_forwards[forward]
    up = d.activate(d.linear(h, used.up, rows=columns), spec.activation)
    return d.part(partial=d.linear(up, used.down, columns=columns))


def tile_part(linear: LinearSpec, rows: int, columns_in: IndexRange, columns_out: IndexRange) -> EncoderPart:
    """`tile_in` [rows, some inputs] times a block of a weight: a `partial` [rows, some outputs], no bias."""
    d = PartBuilder(f"{linear.name} tile")
    a = d.input("tile_in", rows, columns_in.n)
    return d.part(partial=d.linear(a, linear, columns_out, columns_in))


def activation_part(
    spec: EncoderSpec, rows: int, forward: int, columns: IndexRange, n_partials: int
) -> EncoderPart:
    """`partial.i` [rows, some columns] of `up`, summed, with bias, to `activated`."""
    d = PartBuilder("activate")
    total = d.bias(_sum(d, rows, columns.n, n_partials), spec.template.feed_forwards[forward].up, columns)
    return d.part(activated=d.activate(total, spec.activation))


def after_attention_part(spec: EncoderSpec, rows: int, n_partials: int) -> EncoderPart:
    """`partial.i` of the output product, and `x` of the same rows, to `h` and, of pre-norm layers, `y`."""
    d = PartBuilder("after attention")
    total = d.bias(_sum(d, rows, spec.inner, n_partials), spec.template.output)
    y, h = _normalise_sum(d, spec, 0, d.add(total, _residual(d, spec, d.input("x", rows, spec.hidden))))
    return d.part(h=h, y=y) if spec.template.is_pre_norm else d.part(h=h)


def after_feed_forward_part(spec: EncoderSpec, rows: int, forward: int, n_partials: int) -> EncoderPart:
    """`partial.i` of a feed forward and its `y` to the next `h` (and `y`), or after the last one to `out`.

    A layer with a final widening (MobileBERT) also reads `x` of the same rows.
    """
    layer, d = spec.template, PartBuilder(f"after feed forward {forward}")
    total = d.bias(_sum(d, rows, spec.inner, n_partials), layer.feed_forwards[forward].down)
    total = d.add(total, d.input("y", rows, spec.inner))
    y, h = _normalise_sum(d, spec, forward + 1, total)
    if forward + 1 < len(layer.feed_forwards):
        return d.part(h=h, y=y) if layer.is_pre_norm else d.part(h=h)
    if layer.widen is None:
        return d.part(out=h)
    return d.part(out=_narrow(d, h, layer.widen, d.input("x", rows, spec.hidden)))


def _attend(d: PartBuilder, spec: EncoderSpec, x: str, heads: IndexRange) -> str:
    layer, columns = spec.template, _columns(spec, heads)
    if layer.is_pre_norm:
        x = d.norm(x, layer.attention_norm)
    if layer.query_in == layer.value_in:
        source = _narrow(d, x, layer.query_in)
        qkv = d.linear_stack(source, (layer.query, layer.key, layer.value), columns)
        qk, v = qkv, qkv
    else:
        qk = d.linear_stack(_narrow(d, x, layer.query_in), (layer.query, layer.key), columns)
        v = d.linear(_narrow(d, x, layer.value_in), layer.value, columns)
    rows, n, width = d.shape(x)[0], heads.n, columns.n
    views = _view(d, "q", qk, 0, spec, n) | _view(d, "k", qk, width, spec, n)
    views |= _view(d, "v", v, 2 * width if v == qk else 0, spec, n)
    scale = 1 / sqrt(spec.head_dim)
    dim = spec.head_dim
    views |= {"y_view": (0, 1, n, rows, dim, rows * n * dim, dim, n * dim, 1)}
    attended = d.node("FusedAttention", (qk, qk, v), (1, rows, n, dim), scale=scale, **views)
    return d.reshape(attended, rows, width)


def _row_wise(d: PartBuilder, spec: EncoderSpec, attended: str, x: str) -> str:
    layer = spec.template
    total = d.add(d.linear(attended, layer.output), _residual(d, spec, x))
    y, h = _normalise_sum(d, spec, 0, total)
    for i, forward in enumerate(layer.feed_forwards):
        y, h = _normalise_sum(d, spec, i + 1, d.add(_feed_forward(d, spec, forward, h), y))
    return h if layer.widen is None else _narrow(d, h, layer.widen, x)


def _feed_forward(d: PartBuilder, spec: EncoderSpec, forward: FeedForward, h: str) -> str:
    return d.linear(d.activate(d.linear(h, forward.up), spec.activation), forward.down)


def _normalise_sum(d: PartBuilder, spec: EncoderSpec, i: int, total: str) -> tuple[str, str]:
    """(y, h) before feed forward `i`, or after the last, from a product with its bias and residual."""
    layer = spec.template
    if layer.is_pre_norm:
        is_last = i == len(layer.feed_forwards)
        return total, total if is_last else d.norm(total, layer.feed_forwards[i].norm)
    h = d.norm(total, layer.attention_norm if i == 0 else layer.feed_forwards[i - 1].norm)
    return h, h


def _residual(d: PartBuilder, spec: EncoderSpec, x: str) -> str:
    return _narrow(d, x, spec.template.residual_in)


def _narrow(d: PartBuilder, x: str, narrowing: Narrowing | None, residual: str | None = None) -> str:
    """norm(linear(x) [+ residual]), or x."""
    if narrowing is None:
        return x
    made = d.linear(x, narrowing.linear)
    return d.norm(made if residual is None else d.add(made, residual), narrowing.norm)


def _sum(d: PartBuilder, rows: int, columns: int, n: int) -> str:
    total, *others = [d.input(f"partial.{i}", rows, columns) for i in range(n)]
    for other in others:
        total = d.add(total, other)
    return total


def _columns(spec: EncoderSpec, heads: IndexRange) -> IndexRange:
    return IndexRange(heads.start * spec.head_dim, heads.stop * spec.head_dim)


def _view(d: PartBuilder, name: str, x: str, first: int, spec: EncoderSpec, n: int) -> dict[str, Attribute]:
    """Columns of x from `first` as [1, heads, rows, head_dim] (see compile.view)."""
    rows, width = d.shape(x)
    shape, strides = (1, n, rows, spec.head_dim), (0, spec.head_dim, width, 1)
    return {f"{name}_view": (first, *shape, *strides)}
