"""The kernels a BERT-family model runs on, compiled together. Knows which there are, not their use."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pliant.kernels.attention import attention_ir, attention_name
from pliant.kernels.embed import EmbedFormats, embed_ir, embed_name
from pliant.kernels.gemm import gemm_ir
from pliant.kernels.gemm_int8 import gemm_int8_ir, quantize_rows_ir
from pliant.kernels.isa import Isa, host_isa
from pliant.kernels.jit import Library
from pliant.kernels.rowwise import LAYER_NORM, MEAN, layer_norm_ir, mean_ir

Precise = Literal["fp32", "int8"]


@dataclass(frozen=True, slots=True)
class Kernels:
    """Addresses of loaded kernels; `gemm_int8` and `quantize` are 0 unless compute is int8."""

    isa: Isa
    library: Library
    gemm: int
    attention: int
    layer_norm: int
    mean: int
    embed: int
    gemm_int8: int = 0
    quantize: int = 0


def load_kernels(
    head_dim: int,
    formats: EmbedFormats,
    compute: Precise = "fp32",
    *,
    isa: Isa | None = None,
    cache: Path | None = None,
) -> Kernels:
    """Compile (once a machine) and load the kernels for heads padded to `head_dim` columns.

    Raises KernelError when this CPU has no row in the table of instruction sets.
    """
    row = isa or host_isa()
    library = Library(row, cache)
    attention, embed = attention_name(head_dim), embed_name(formats)
    wanted = {
        "gemm": lambda: gemm_ir(row),
        attention: lambda: attention_ir(row, head_dim),
        LAYER_NORM: lambda: layer_norm_ir(row),
        MEAN: lambda: mean_ir(row),
        embed: lambda: embed_ir(row, formats),
    }
    if compute == "int8":
        wanted["gemm_int8"] = lambda: gemm_int8_ir(row)
        wanted["quantize_rows"] = lambda: quantize_rows_ir(row)
    at = {name: symbols[name] for name, symbols in library.generated(wanted).items()}
    return Kernels(
        isa=row,
        library=library,
        gemm=at["gemm"],
        attention=at[attention],
        layer_norm=at[LAYER_NORM],
        mean=at[MEAN],
        embed=at[embed],
        gemm_int8=at.get("gemm_int8", 0),
        quantize=at.get("quantize_rows", 0),
    )
