"""Write the resident data of an elastic model (all but its planes) to one file, which is read at open.

Decode tables and plain matrices are stored in the target kernels' layout.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from pliant.compiler.aot.c_source import format_array, format_numbers
from pliant.compiler.executable.encoder_stages import plain_layers
from pliant.compiler.executable.weight_inputs import decode_tables, plain_arrays, weight_step
from pliant.ir.bitwidths import PLANES
from pliant.kernels.emit.isa import Isa
from pliant.models.word_table import QuantizedTable
from pliant.store.container import FileDigest, FileLayout, TensorField, dtype_name, lay_out, write_file
from pliant.store.read import Store

_BIASES = ("qkv_bias", "output_bias", "up_bias", "down_bias")
_NORMS = ("attention_norm", "output_norm")
_OUTLIERS = ("outlier_rows", "outlier_offsets", "outlier_values")
_LAYER = (*_BIASES, *(f"{norm}.{part}" for norm in _NORMS for part in ("weight", "bias")), "step")
_ENDS = ("codebook", "position", "type", "norm.weight", "norm.bias")
_LINEARS = {"project": "SPACE_PROJECT", "dense": "SPACE_DENSE", "classifier": "SPACE_CLASSIFIER"}
_TABLES = (*_LAYER, *_ENDS, *(f"{name}.bias" for name in _LINEARS))
MOST_TABLES = 32  # of c/model/runtime.h
assert len(_TABLES) <= MOST_TABLES


def space_of(tensor: str) -> str:
    """The C expression for a form's input in the tables."""
    return f"SPACE_TABLES + {_TABLES.index(tensor)}"


def is_table(tensor: str) -> bool:
    return tensor in _TABLES


def resident_arrays(
    store: Store, layers: Sequence[int], tokens: int, isa: Isa, compute: str
) -> Mapping[str, np.ndarray]:
    """Arrays of the layers that run, the embeddings and the head, by name; positions for inputs of up to
    `tokens`.
    """
    arrays: dict[str, np.ndarray] = {}
    for layer in layers:
        resident, prefix = store.resident(layer), f"layers.{layer}."
        named = {name: getattr(resident, name) for name in (*_BIASES, *_OUTLIERS)}
        for norm in _NORMS:
            weight, bias = getattr(resident, norm)
            named |= {f"{norm}.weight": weight, f"{norm}.bias": bias}
        named["step"] = weight_step(resident, isa)
        named |= {f"decode.{k}": table for k, table in decode_tables(resident, isa, compute).items()}
        arrays |= {prefix + name: array for name, array in named.items()}
    embeddings = store.embeddings
    arrays["position"] = embeddings.position[: store.spec.position_offset + tokens]
    arrays["norm.weight"], arrays["norm.bias"] = embeddings.norm
    if embeddings.types is not None:
        arrays["type"] = embeddings.types
    if isinstance(embeddings.word, QuantizedTable):
        arrays["codebook"] = embeddings.word.codebook
    for name, linear in plain_layers(embeddings, store.head).items():
        plain = plain_arrays(linear)
        arrays[f"{name}.packed"], arrays[f"{name}.bias"] = plain.packed, plain.bias
        arrays[f"{name}.rows"] = plain.outlier_rows
    return arrays


def write_arrays(arrays: Mapping[str, np.ndarray], path: Path) -> tuple[FileLayout, FileDigest]:
    """A safetensors file of `arrays`, each at a multiple of 64 bytes."""
    layout = lay_out([TensorField(name, dtype_name(array), array.shape) for name, array in arrays.items()])
    return layout, write_file(path, layout, arrays.values(), lambda path: path.open("wb"))


def array_offsets(layout: FileLayout) -> Mapping[str, int]:
    """The start byte of each array in the file."""
    return {field.name: at for field, at in zip(layout.fields, layout.offsets, strict=True)}


def resident_source(places: Mapping[str, int], n_layers: int, linears: Sequence[str]) -> str:
    """The arrays PLACES, DECODERS, OUTLIERS and LINEARS; zeros for layers that do not run."""
    rows = [[places.get(f"layers.{n}.{x}", 0) for x in _TABLES] for n in range(n_layers)]
    rows.append([places.get(x, 0) for x in _TABLES])
    padded = [x for row in rows for x in (*row, *[0] * (MOST_TABLES - len(row)))]
    decoders = [
        places.get(f"layers.{n}.decode.{k}", 0) for n in range(n_layers) for k in range(1, PLANES + 1)
    ]
    outliers = [places.get(f"layers.{n}.{x}", 0) for n in range(n_layers) for x in _OUTLIERS]
    known = [f"{{{_LINEARS[x]}, {places[f'{x}.packed']}u, {places[f'{x}.rows']}u}}" for x in linears]
    return "\n".join(
        [
            format_numbers("uint64_t PLACES", padded),
            format_numbers("uint64_t DECODERS", decoders),
            format_numbers("uint64_t OUTLIERS", outliers),
            format_array("struct linear LINEARS", known, "{0, 0, 0}"),
        ]
    )


def linear_spaces() -> Mapping[str, str]:
    """The C expressions for descriptors of plain matrices, by input name."""
    return {f"{name}.slices": space for name, space in _LINEARS.items()}
