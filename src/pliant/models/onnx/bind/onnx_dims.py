"""The types of a model's inputs for given symbolic dimensions."""

from collections.abc import Mapping

from pliant.errors import InputError
from pliant.ir.graph import TensorType
from pliant.ir.port import Port
from pliant.models.onnx.onnx_file import OnnxModel


def input_types(
    model: OnnxModel, dims: Mapping[str, int], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, TensorType | None]:
    """The type of each input, None for one that is no tensor; `shapes` gives whole shapes instead of
    dimensions.

    Raises InputError for dimensions that are missing, unknown or negative.
    """
    types = {p.name: None if p.element else _bound(p, dims, shapes) for p in model.inputs}
    _check_dims(model, dims)
    return types


def _bound(port: Port, dims: Mapping[str, int], shapes: Mapping[str, tuple[int, ...]]) -> TensorType:
    if port.name in shapes:
        return TensorType(port.dtype, shapes[port.name])
    if port.dims is None:
        raise InputError(f"input {port.name!r} may have any rank; give its whole shape.")
    shape = []
    for axis, dim in enumerate(port.dims):
        key = dim if isinstance(dim, str) else f"{port.name}.{axis}"
        size = dim if isinstance(dim, int) else dims.get(key)
        if size is None:
            raise InputError(f"dimension {key!r} of input {port.name!r} ({port}) is not bound.")
        if size < 0:
            raise InputError(f"dimension {key!r} is {size}; it must be 0 or more.")
        shape.append(int(size))
    return TensorType(port.dtype, tuple(shape))


def _check_dims(model: OnnxModel, dims: Mapping[str, int]) -> None:
    known = set(model.symbols)
    known |= {f"{p.name}.{i}" for p in model.inputs for i, d in enumerate(p.dims or ()) if d is None}
    unknown = sorted(set(dims) - known)
    if unknown:
        raise InputError(f"the model has no dimensions {unknown}; it has {sorted(known)}.")
