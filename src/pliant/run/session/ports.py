"""The inputs and outputs of a session: shape checks and onnxruntime's calling convention."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain, combinations
from numbers import Integral
from typing import Any

import numpy as np

from pliant.errors import InputError
from pliant.ir.graph import TensorType
from pliant.ir.port import Port
from pliant.run.session.feeds import NAMED, FeedsLike

Feeds = Mapping[str, np.ndarray]
Shapes = dict[str, tuple[int, ...]]


def shapes_of(ports: Sequence[Port], feeds: Mapping[str, Any]) -> Shapes:
    """Every tensor's shape. Raises InputError for shapes that the ports do not accept.

    Arrays in sequences and optional values are checked one by one, each with its own open dimensions.
    """
    sizes: dict[str, tuple[int, str]] = {}
    shapes = {}
    for port in ports:
        if port.element is None:
            shapes[port.name] = _shape(port, feeds[port.name], sizes)
    if len(shapes) < len(ports):
        _check_held(port.elements(feeds[port.name]) for port in ports if port.element is not None)
    return shapes


@lru_cache(maxsize=256)
def symbols(port: Port) -> tuple[str | None, ...]:
    """The name of each open dimension, None for fixed ones; a dimension without a name is called
    "input.axis".
    """
    named = (f"{port.name}.{i}" if d is None else d for i, d in enumerate(port.dims or ()))
    return tuple(None if isinstance(d, int) else d for d in named)


def whole_dims(ports: Sequence[Port], dims: Mapping[str, int]) -> dict[str, int]:
    """`dims`, numpy's integers among them, as plain ints.

    Raises InputError for a size that no port has a dimension for, or that is not a whole number.
    """
    known = {s for port in ports for s in symbols(port) if s is not None}
    for name, size in dims.items():
        if name not in known:
            raise InputError(f"the model has no dimension {name!r}; it has {sorted(known)}.")
        if isinstance(size, bool) or not isinstance(size, Integral) or size < 0:
            raise InputError(f"dimension {name!r} is {size!r}; it must be a whole number, 0 or more.")
    return {name: int(size) for name, size in dims.items()}


def fix_dims(port: Port, dims: Mapping[str, int]) -> Port:
    """The port with the dimensions in `dims` fixed."""
    if port.dims is None:
        return port
    named = zip(symbols(port), port.dims, strict=True)
    return Port(port.name, port.dtype, tuple(d if s is None else dims.get(s, d) for s, d in named))


def check_writable(name: str, array: Any, type_: TensorType) -> np.ndarray:
    """`array`, if an output can be written into it directly. Raises InputError otherwise."""
    if not isinstance(array, np.ndarray):
        raise InputError(f"{name!r} must be a numpy array, not {type(array).__name__}.")
    if array.dtype != type_.numpy or array.shape != type_.shape:
        raise InputError(f"{name!r} is {array.dtype}{list(array.shape)}, but must be {type_}.")
    if not (array.flags.c_contiguous and array.flags.writeable):
        raise InputError(f"the array given for output {name!r} must be C-contiguous and writable.")
    return array


def copy_into(out: Feeds | None, name: str, value: Any) -> Any:
    """`value`, copied into the array in `out` of this name, if any. Raises InputError if it does not fit."""
    given = None if out is None else out.get(name)
    if given is None:
        if type(value) is np.ndarray and value.flags.c_contiguous:
            return value
        if isinstance(value, np.ndarray | np.generic):
            return np.ascontiguousarray(value).reshape(np.shape(value))
        return value
    if not isinstance(value, np.ndarray | np.generic):
        what = "absent" if value is None else "a sequence"
        raise InputError(f"output {name!r} is {what}: it is written into no array, leave it out of `out`.")
    array = np.asarray(value)
    np.copyto(check_writable(name, given, TensorType(str(array.dtype), array.shape)), array)
    return given


def _apart(feeds: FeedsLike, out: FeedsLike) -> FeedsLike:
    """The feeds, copied where they overlap an array of `out`: outputs are written while inputs are read.

    Raises InputError if two arrays of `out` overlap.
    """
    given = {y: array for y, array in dict(out).items() if isinstance(array, np.ndarray)}
    for (y, one), (z, other) in combinations(given.items(), 2):
        if np.may_share_memory(one, other):
            raise InputError(
                f"the arrays given for outputs {y!r} and {z!r} overlap: give each its own memory."
            )

    def is_written(x: Any) -> bool:
        return isinstance(x, np.ndarray) and any(np.may_share_memory(x, one) for one in given.values())

    return {name: x.copy() if is_written(x) else x for name, x in dict(feeds).items()}


def parse_run_arguments(
    feeds: FeedsLike | Sequence[str] | None, out: FeedsLike | None, outputs: Sequence[Port]
) -> tuple[FeedsLike, Feeds | None, list[str] | None]:
    """`run(feeds, out)` or onnxruntime's `run(names or None, feeds)` as feeds, out, and the requested output
    names.

    Raises InputError for another form of call, or an unknown output.
    """
    if isinstance(feeds, NAMED):
        if out is not None:
            _check_known(out, outputs)
            feeds = _apart(feeds, out)
        return feeds, out, None
    if not isinstance(out, NAMED):
        raise InputError("run takes feeds by name: run({name: array}), or run([output, ...], {name: array}).")
    names = list(feeds or [port.name for port in outputs])
    _check_known(names, outputs)
    return out, None, names


def describe_session(session: str, inputs: Sequence[Port], outputs: Sequence[Port], more: str) -> str:
    """A one-line description of a session."""
    ports = [", ".join(f"{p.name}: {p}" for p in side) for side in (inputs, outputs)]
    return f"<{session} ({ports[0]}) -> ({ports[1]}), {more}>"


def _shape(port: Port, array: np.ndarray, sizes: dict[str, tuple[int, str]]) -> tuple[int, ...]:
    """A feed's checked shape; `sizes` collects the size of each symbol and the input that set it."""
    shape = tuple(array.shape)
    if port.dims is None or shape == port.dims:
        return shape
    if len(shape) != len(port.dims):
        raise InputError(f"input {port.name!r} is {_given(array)}, but must be {port}.")
    for axis, (dim, size) in enumerate(zip(port.dims, shape, strict=True)):
        if isinstance(dim, int) and dim != size:
            must = f"must be {port} (axis {axis} is {size})"
            raise InputError(f"input {port.name!r} is {_given(array)}, but {must}.")
        if isinstance(dim, str):
            bound, by = sizes.setdefault(dim, (size, port.name))
            if bound != size:
                raise InputError(
                    f"dimension {dim!r} is {bound} in input {by!r}, but {size} in {port.name!r} "
                    f"({_given(array)})."
                )
    return shape


def _check_held(inputs: Iterable[Iterable[tuple[Port, Any]]]) -> None:
    for port, value in chain.from_iterable(inputs):
        if port.element is None:
            _shape(port, value, {})
        else:
            _check_held([port.elements(value)])


def _given(array: np.ndarray) -> TensorType:
    return TensorType(str(array.dtype), tuple(array.shape))


def _check_known(names: Collection[str], outputs: Sequence[Port]) -> None:
    known = [port.name for port in outputs]
    unknown = [x for x in names if x not in known]
    if unknown:
        raise InputError(f"there are no outputs {unknown}; the outputs are {known}.")
