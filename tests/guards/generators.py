"""Kernel generators with parameters, for each ISA row; run as a script, it prints hashes of the texts."""

import hashlib
import importlib
import inspect
import json
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import pliant.kernels as package
from pliant.kernels.attention.attention import attention_ir
from pliant.kernels.attention.attention_texts import texts_ir
from pliant.kernels.attention.rotary import rotary_ir
from pliant.kernels.coded.embed import EmbedFormats, embed_ir
from pliant.kernels.coded.gemm import gemm_ir
from pliant.kernels.coded.gemm_bf16 import gemm_bf16_ir
from pliant.kernels.coded.int8.gemm_int8 import gemm_bytes_ir, gemm_int8_ir
from pliant.kernels.coded.int8.round_rows import round_rows_ir, round_rows_name
from pliant.kernels.coded.round_bf16 import round_bf16_ir
from pliant.kernels.conv.conv import conv_ir
from pliant.kernels.conv.conv_activations import ACTIVATIONS as CONV_ACTIVATIONS
from pliant.kernels.conv.conv_args import ConvForm
from pliant.kernels.conv.conv_bf16 import conv_tiles_ir, tiles_name
from pliant.kernels.conv.conv_grouped import GroupedForm, grouped_ir, most_pixels
from pliant.kernels.conv.conv_planes import PlanesForm, planes_ir
from pliant.kernels.conv.conv_weights import pack_ir
from pliant.kernels.conv.direct.conv_deform import deform_ir
from pliant.kernels.conv.direct.conv_depthwise import depthwise_ir
from pliant.kernels.conv.direct.conv_pointwise import PointwiseForm, pointwise_ir
from pliant.kernels.conv.direct.conv_quantized import QuantizedConvForm, quantized_conv_ir
from pliant.kernels.conv.direct.conv_transpose import conv_transpose_ir as transposed_gather_ir
from pliant.kernels.conv.winograd import winograd_ir
from pliant.kernels.emit import isa as isa_table
from pliant.kernels.emit.dtypes import DTYPES
from pliant.kernels.emit.expression import Expr, parse
from pliant.kernels.emit.isa import Isa
from pliant.kernels.emit.operations import OPERATIONS
from pliant.kernels.emit.vmath import ACTIVATIONS
from pliant.kernels.move.grid_sample import GridForm, grid_ir
from pliant.kernels.move.index_gather import gather_elements_ir, gather_ir, reverse_ir
from pliant.kernels.move.move import rows_ir, spread_ir, strided_ir, transpose_ir
from pliant.kernels.move.nearest import nearest_ir
from pliant.kernels.move.position_writes import cache_ir, one_hot_ir
from pliant.kernels.move.regions import regions_ir
from pliant.kernels.move.resample import ResampleForm, resample_ir
from pliant.kernels.move.scatter import add_strided_ir, scatter_elements_ir, scatter_ir
from pliant.kernels.move.triangle import triangle_ir
from pliant.kernels.pool.pool_planes import pool_planes_ir
from pliant.kernels.pool.pool_rows import pool_rows_ir
from pliant.kernels.pool.pool_window import PoolForm, pool_ir
from pliant.kernels.product.contract import contract_ir
from pliant.kernels.product.contract_rows import contract_rows_ir as loop_rows_ir
from pliant.kernels.product.matmul import matmul_ir
from pliant.kernels.product.matmul_integer import choose_form, matmul_integer_ir
from pliant.kernels.product.quantize_rows import quantize_rows_ir, value_range_ir
from pliant.kernels.product.scaled_block import ELEMENTS
from pliant.kernels.recurrent.recurrent_args import RecurrentForm
from pliant.kernels.recurrent.recurrent_cells import ACTIVATIONS as CELL_ACTIVATIONS
from pliant.kernels.recurrent.recurrent_kernel import recurrent_ir, start_ir
from pliant.kernels.recurrent.recurrent_weights import interleave_ir
from pliant.kernels.rows.cumulate import cumulate_ir
from pliant.kernels.rows.determinant import determinant_ir
from pliant.kernels.rows.extremum import Extremum, extremum_ir
from pliant.kernels.rows.fourier import fourier_ir
from pliant.kernels.rows.lrn import lrn_ir
from pliant.kernels.rows.map import map_ir
from pliant.kernels.rows.reduce import Reduction, reduce_ir
from pliant.kernels.rows.rms_norm import rms_norm_ir
from pliant.kernels.rows.rowwise import layer_norm_ir, maximum_ir, mean_ir, softmax_ir
from pliant.kernels.rows.topk import topk_ir
from pliant.kernels.runtime.walker import walker_ir
from pliant.kernels.tiles.gemm_split import gemm_split_ir, split_rows_ir
from pliant.kernels.tiles.matmul_split import matmul_split_ir
from pliant.kernels.tiles.split_panels import split_panels_ir

Generator = Callable[[Isa], str]

_HEX_DIGITS = 16
ROWS = {f"{row.name}{row.features}": row for row in vars(isa_table).values() if isinstance(row, Isa)}


def _products(isa: Isa) -> Iterator[tuple[str, Generator]]:
    """Dense, integer, scaled and coded products; weights are decoded in flight at 2 to 6 bits."""
    yield "gemm", gemm_ir
    yield "gemm int8", gemm_int8_ir
    yield "gemm int8 rounding", round_rows_ir
    yield "gemm bytes", gemm_bytes_ir
    if round_rows_name(True, isa) != round_rows_name(False, isa):
        yield "gemm bytes rounding", partial(round_rows_ir, is_resident=True)
    if isa.has_bf16:
        yield "gemm bf16", gemm_bf16_ir
        yield "gemm bf16 rounding", round_bf16_ir
    if isa.has_tiles:
        yield "gemm split", gemm_split_ir
        yield "gemm split rounding", split_rows_ir
        yield "matmul split", matmul_split_ir
    for activation in (None, *ACTIVATIONS):
        yield f"matmul {activation}", partial(matmul_ir, activation=activation)
    for bits in range(2, 7):
        yield f"matmul of {bits} bits", partial(matmul_ir, bits=bits)
    for element in ELEMENTS:
        yield f"matmul of {element}", partial(matmul_ir, element=element)
    for fits_bytes in (False, True):
        form = choose_form(isa, fits_bytes)
        size = "bytes" if fits_bytes else "words"
        yield f"matmul integer {size}", partial(matmul_integer_ir, form=form, is_float=False)
        yield f"matmul integer {size} rounding", partial(quantize_rows_ir, form=form)
        for activation in (None, "gelu"):
            product = partial(matmul_integer_ir, form=form, is_float=True, activation=activation)
            yield f"matmul integer {size} float {activation}", product
    yield "matmul integer range", value_range_ir
    yield "contract float32", partial(contract_ir, dtype="float32", n_operands=2)
    yield "contract float32 rows", partial(contract_ir, dtype="float32", n_operands=2, pattern="csc")
    yield "contract float16 of 3", partial(contract_ir, dtype="float16", n_operands=3)
    yield "contract int64", partial(contract_ir, dtype="int64", n_operands=2)


def _attention(isa: Isa) -> Iterator[tuple[str, Generator]]:
    for head_dim in (32, 64):
        yield f"attention {head_dim}", partial(attention_ir, head_dim=head_dim)
        yield f"attention {head_dim} of texts", partial(texts_ir, head_dim=head_dim)
    yield "attention 8", partial(attention_ir, head_dim=8)
    yield "attention 16 of texts", partial(texts_ir, head_dim=16)
    yield "attention 24 and 16", partial(attention_ir, head_dim=24, value_dim=16)
    yield "rotary", rotary_ir


def _convolutions(isa: Isa) -> Iterator[tuple[str, Generator]]:
    forms = [ConvForm(x, y) for x in ("nchw", "nhwc") for y in ("nchw", "nhwc")]  # type: ignore[arg-type]
    residual = ConvForm("nhwc", "nhwc", "relu", has_residual=True)
    for form in (*forms, residual):
        yield form.name, partial(conv_ir, form=form)
    for activation in filter(None, CONV_ACTIVATIONS):
        form = ConvForm("nhwc", "nhwc", activation)
        yield f"depthwise {form.name}", partial(depthwise_ir, form=form)
    for form in (forms[-1], residual):
        yield f"depthwise {form.name}", partial(depthwise_ir, form=form)
        yield f"winograd {form.name}", partial(winograd_ir, form=form)
    for channels in (2, 4, 8, 16):
        for ends in (forms[0], forms[-1], residual):
            grouped = GroupedForm(channels, kernel_w=3, stride_w=2, ends=ends)
            yield grouped.name, partial(grouped_ir, form=grouped)
    for channels in (2, 4, 8, 16):  # the largest tiles
        for kernel_w in (5, 7):
            pixels = min(14 if channels > 8 else 8, most_pixels(isa, kernel_w))
            grouped = GroupedForm(channels, kernel_w, stride_w=2, pixels=pixels, ends=forms[-1])
            yield f"grouped {channels} x {kernel_w}", partial(grouped_ir, form=grouped)
    hard = ConvForm("nchw", "nchw", "hard_swish", has_residual=True)
    yield hard.name, partial(conv_ir, form=hard)
    for points in (PointwiseForm(8), PointwiseForm(3, "relu", has_residual=True)):
        yield points.name, partial(pointwise_ir, form=points)
    planes = PlanesForm(kernel_w=3, stride_w=2, activation="hard_swish")
    yield planes.name, partial(planes_ir, form=planes)
    for y_is_signed in (None, False, True):
        quantized = QuantizedConvForm(x_is_signed=False, w_is_signed=True, y_is_signed=y_is_signed)
        yield f"quantized {quantized.name}", partial(quantized_conv_ir, form=quantized)
    if isa.has_tiles:
        for form in (forms[-1], replace(forms[-1], y="nchw"), residual):
            for parts in (1, 2):
                yield tiles_name(form, parts), partial(conv_tiles_ir, form=form, parts=parts)
        yield "conv weights split", split_panels_ir
    yield "conv transposed", transposed_gather_ir
    yield "conv deformed", deform_ir
    yield "conv weights", pack_ir


def _rowwise(isa: Isa) -> Iterator[tuple[str, Generator]]:
    yield "layer norm", layer_norm_ir
    yield "rms norm", rms_norm_ir
    yield "local response norm", lrn_ir
    yield "softmax", softmax_ir
    yield "mean of rows", mean_ir
    yield "most of rows", maximum_ir
    for word, type_ in (("codes", "F32"), ("F32", None), ("F16", "F32"), ("BF16", "F32")):
        formats = EmbedFormats(word, "F32", type_)  # type: ignore[arg-type]
        yield f"embed {word} {type_}", partial(embed_ir, formats=formats)


_UNARY = (
    *("exp", "expm1", "ln", "log1p", "tanh", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh"),
    *("asinh", "acosh", "atanh", "sqrt", "round", "floor", "ceil", "erf", "sigmoid", "softplus", "gelu"),
    *("gelu_tanh", "neg", "abs", "sign"),
)
_BINARY = ("add", "sub", "mul", "div", "mod", "fmod", "pow", "min", "max")
_INTEGER = ("add", "sub", "mul", "div", "mod", "fmod", "pow", "min", "max", "and", "or", "xor", "shl", "shr")


def _expressions() -> Iterator[str]:
    """Each operation alone, and each cast from float32 and to it."""
    for op in _UNARY:
        yield f"({op}:float32 x0:float32)"
    yield from ("(exp:float64 x0:float64)", "(tanh:float64 x0:float64)", "(sin:float64 x0:float64)")
    for op in _BINARY:
        yield f"({op}:float32 x0:float32 x1:float32)"
    for dtype in ("int8", "uint32"):
        for op in _INTEGER:
            yield f"({op}:{dtype} x0:{dtype} x1:{dtype})"
    for op in ("eq", "lt", "le", "gt", "ge"):
        yield f"({op}:bool x0:float32 x1:float32)"
    for op in ("isinf", "isnan"):
        yield f"({op}:bool x0:float32)"
    yield from ("(not:bool x0:bool)", "(where:float32 x0:bool x1:float32 0.5:float32)")
    for how in ("up", "down", "nearest"):
        for end in ("", "_saturated"):
            yield f"(power_{how}{end}:float8_e8m0fnu x0:float32)"
    for dtype in DTYPES:
        if dtype != "float32":
            yield f"(cast:{dtype} x0:float32)"
            yield f"(cast:float32 x0:{dtype})"


def _maps(isa: Isa) -> Iterator[tuple[str, Generator]]:
    for text in _expressions():
        tree = parse(text)
        yield f"map {text}", partial(map_ir, tree=tree, pattern="cs"[: len(_inputs(tree))] or "c")


def _reductions(isa: Isa) -> Iterator[tuple[str, Generator]]:
    """The sums, means, extrema and truths of ONNX's operators, along rows and columns."""
    formulas = (
        ("x0:float32", "add", "(div:float32 x0:float32 (cast:float32 x2:int64))"),
        ("(exp:float32 (sub:float32 x0:float32 x1:float32))", "add", "x0:float32"),
        ("x0:float32", "max", "x0:float32"),
        ("x0:float16", "add", "x0:float16"),
        ("x0:int64", "mul", "x0:int64"),
        ("x0:uint8", "min", "x0:uint8"),
        ("x0:bool", "or", "x0:bool"),
        ("x0:bool", "and", "x0:bool"),
    )
    for term, combine, post in formulas:
        for by_columns in (False, True):
            reduction = Reduction(parse(term), combine, parse(post), by_columns)
            label = f"reduce {term} {combine} {post} {'columns' if by_columns else 'rows'}"
            yield label, partial(reduce_ir, reduction=reduction)
    for extremum in (
        Extremum("float32", True, False, is_row=True),
        Extremum("float32", True, False),
        Extremum("int8", False, True),
        Extremum("float16", False, True, is_row=True),
    ):
        yield f"extremum {extremum.name}", partial(extremum_ir, extremum=extremum)
    for dtype, operation in (("float32", "add"), ("float16", "add"), ("int64", "mul")):
        label = f"cumulate {operation} {dtype}"
        yield label, partial(cumulate_ir, name="cumulate", dtype=dtype, operation=operation)
    for dtype in ("float32", "int64"):
        yield f"topk {dtype}", partial(topk_ir, name="topk", dtype=dtype)
    for dtype in ("float32", "float64"):
        yield f"determinant {dtype}", partial(determinant_ir, name="determinant", dtype=dtype)
        yield f"fourier {dtype}", partial(fourier_ir, name="fourier", dtype=dtype)


def _moves(isa: Isa) -> Iterator[tuple[str, Generator]]:
    yield "move rows", partial(rows_ir, name="move")
    for size in (1, 2, 4, 8):
        yield f"move spread {size}", partial(spread_ir, name="move", size=size)
        yield f"move strided {size}", partial(strided_ir, name="move", size=size)
        yield f"move transpose {size}", partial(transpose_ir, name="move", size=size)
    for index, size, is_deep in (("int64", None, False), ("int32", 4, False), ("int64", 8, True)):
        label = f"gather {index} {size} {'deep' if is_deep else 'flat'}"
        yield label, partial(gather_ir, name="gather", index=index, size=size, is_deep=is_deep)
    for index, size in (("int32", 1), ("int64", 4)):
        yield f"pick {index} {size}", partial(gather_elements_ir, name="pick", index=index, size=size)
        yield f"one hot {index} {size}", partial(one_hot_ir, name="one_hot", index=index, size=size)
    yield "reverse", partial(reverse_ir, name="reverse")
    for is_circular in (False, True):
        yield f"cache circular={is_circular}", partial(cache_ir, name="cache", is_circular=is_circular)
    for is_upper in (False, True):
        yield f"triangle upper={is_upper}", partial(triangle_ir, name="triangle", is_upper=is_upper)
    for dtype, reduction in (("float32", "none"), ("float32", "add"), ("float16", "mul"), ("bool", "max")):
        given = {"index": "int64", "dtype": dtype, "reduction": reduction}
        yield f"scatter {dtype} {reduction}", partial(scatter_ir, name="scatter", **given)
        yield f"place {dtype} {reduction}", partial(scatter_elements_ir, name="place", **given)
    yield "scatter added", partial(add_strided_ir, name="added", dtype="float32")
    yield "rows in a loop", loop_rows_ir


def _windows(isa: Isa) -> Iterator[tuple[str, Generator]]:
    """Pooling, resampling, sampling by a grid, and regions of an image."""
    for form in (
        *(PoolForm(reduction, stride_w=1) for reduction in ("max", "average", "lp")),  # type: ignore[arg-type]
        *(PoolForm(reduction, layout="nhwc") for reduction in ("max", "average", "lp")),  # type: ignore[arg-type]
        *(
            PoolForm("max", stride_w=2),
            PoolForm("max"),
            PoolForm("max", has_indices=True),
            PoolForm("max", "int8"),
        ),
        PoolForm("average", "float64"),
    ):
        yield form.name, partial(pool_rows_ir if form.is_by_rows else pool_ir, form=form)
    for reduction in ("max", "average", "lp"):
        for taps in ((0, 0), (3, 3)):
            form = PoolForm(reduction, is_by_planes=True, taps=taps)  # type: ignore[arg-type]
            yield form.name, partial(pool_planes_ir, form=form)
        for stride_w, taps in ((1, (3, 3)), (2, (3, 3)), (0, (2, 7))):
            form = PoolForm(reduction, stride_w=stride_w, taps=taps)  # type: ignore[arg-type]
            yield form.name, partial(pool_rows_ir, form=form)
    for resample in (
        ResampleForm("float32", has_rows=True, has_columns=True, is_wide=True),
        ResampleForm("float32", has_rows=True, has_columns=True, is_wide=False),
        ResampleForm("float32", has_rows=False, has_columns=True, is_wide=False),
        ResampleForm("float64", has_rows=True, has_columns=True, is_wide=False),
        ResampleForm("uint8", has_rows=True, has_columns=False, is_wide=False),
    ):
        yield resample.name, partial(resample_ir, form=resample)
    for size in (None, 1, 4):
        name = f"nearest_{size or 'pixels'}"
        yield name, partial(nearest_ir, name=name, size=size)
    for sampling in (
        GridForm(2, "linear", "zeros", False),
        GridForm(2, "nearest", "border", True),
        GridForm(2, "cubic", "reflection", False),
        GridForm(3, "linear", "reflection", True),
    ):
        yield sampling.name, partial(grid_ir, sampling=sampling)
    for is_max in (False, True):
        yield f"regions max={is_max}", partial(regions_ir, name="regions", is_max=is_max)


def _recurrent(isa: Isa) -> Iterator[tuple[str, Generator]]:
    yield "recurrent start", start_ir
    yield "recurrent weights", interleave_ir
    usual = ("sigmoid", "tanh", "tanh")
    for cell, activations in (
        ("lstm", usual),
        *(("gru", usual[:2]), ("gru_reset_before", usual[:2])),
        *(("rnn", (activation,)) for activation in CELL_ACTIVATIONS),
    ):
        form = RecurrentForm(cell, activations)  # type: ignore[arg-type]
        yield form.name, partial(recurrent_ir, form=form)


def _machine(isa: Isa) -> Iterator[tuple[str, Generator]]:
    yield "walker", walker_ir


FAMILIES = (
    *(_products, _attention, _convolutions, _rowwise, _maps, _reductions),
    *(_moves, _windows, _recurrent, _machine),
)


def _inputs(tree: Expr) -> set[Expr]:
    return {tree} if tree.op == "x" else {found for child in tree.args for found in _inputs(child)}


def cases(isa: Isa) -> dict[str, Generator]:
    found = [case for family in FAMILIES for case in family(isa)]
    assert len(found) == len(dict(found)), "two cases have one label"
    return dict(found)


def function(generator: Generator) -> Callable[..., str]:
    """The generator behind a case."""
    return generator.func if isinstance(generator, partial) else generator


def generators() -> set[Callable[..., str]]:
    """Every public function below pliant.kernels that takes an ISA row and returns text."""
    found = set()
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        for name, value in vars(importlib.import_module(module.name)).items():
            if inspect.isfunction(value) and not name.startswith("_"):
                parameters = list(inspect.signature(value).parameters)
                if parameters[:1] == ["isa"] and value.__annotations__.get("return") in (str, "str"):
                    found.add(value)
    return found


def known_operations() -> set[str]:
    """What an element-wise expression may be made of."""
    return set(OPERATIONS)


def expression_operations() -> set[str]:
    """What the expressions here are made of."""
    return set[str]().union(*(_operations(parse(text)) for text in _expressions()))


def _operations(tree: Expr) -> set[str]:
    return {tree.op}.union(*map(_operations, tree.args))


def hashes() -> dict[str, dict[str, str]]:
    """By case and ISA row, the first digits of the SHA-256 of what the generator writes."""
    record: dict[str, dict[str, str]] = {}
    for key, row in ROWS.items():
        for label, generator in cases(row).items():
            digest = hashlib.sha256(generator(row).encode()).hexdigest()[:_HEX_DIGITS]
            record.setdefault(label, {})[key] = digest
    return record


if __name__ == "__main__":
    print(json.dumps(hashes()))
