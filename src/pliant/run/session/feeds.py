"""Convert feeds to arrays of the model's types, if the conversion changes no value."""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from pliant.errors import InputError
from pliant.ir.graph import TensorType, numpy_type
from pliant.ir.port import Port

FeedsLike = Mapping[str, Any]
"""Values that `convert_feed` accepts, by input name."""

NAMED = (dict, Mapping)
"""The types of feeds by name; dict comes first because `isinstance` is fast for it and slow for an abstract
class.
"""

_NUMBERS, _ARRAYS = (list, tuple, bool, int, float), (np.ndarray, np.generic)
_KINDS = re.compile("[bu]?(bool|int|float|complex)")


def name_feed(ports: Sequence[Port], value: Any) -> dict[str, Any]:
    """The feeds of a model with one input. Raises InputError for another, and for feeds by name."""
    if len(ports) != 1:
        names = [port.name for port in ports]
        raise InputError(f"the model has {len(names)} inputs, {names}: call run({{name: array, ...}}).")
    if isinstance(value, Mapping):
        raise InputError("a call takes the input's array, without a name: by name, call run({name: array}).")
    return {ports[0].name: value}


def convert_feeds(ports: Sequence[Port], feeds: FeedsLike) -> dict[str, Any]:
    """Every input's array; a list of them for a sequence, None for an optional value that is absent.

    Raises InputError for a feed that is missing, unknown, or of the wrong type.
    """
    require_named(feeds)
    arrays = {}
    for port in ports:  # a comprehension would add a call, noticeable in short runs
        if port.name in feeds:
            value = feeds[port.name]
            arrays[port.name] = (
                convert_feed(port, value) if port.element is None else _convert_nested(port, value)
            )
    if not len(arrays) == len(ports) == len(feeds):
        names = {port.name for port in ports}
        wrong = [f"{x!r} is missing" for x in sorted(names - feeds.keys())]
        wrong += [f"there is no input {x!r}" for x in sorted(feeds.keys() - names)]
        inputs = ", ".join(f"{port.name}: {port}" for port in ports)
        raise InputError(f"the feeds do not fit: {'; '.join(wrong)}. The inputs are {inputs}.")
    return arrays


def require_named(feeds: object) -> None:
    """Raise InputError unless feeds are given by name."""
    if not isinstance(feeds, NAMED):
        raise InputError(f"feeds are given by name, as {{name: array}}, not as a {type(feeds).__name__}.")


def convert_feed(port: Port, value: Any) -> np.ndarray:
    """`value` as an array of the port's type; its shape is not checked.

    Accepts numpy arrays, tensors of other libraries (through `__array__` or `__dlpack__`), and numbers and
    nested lists of numbers. Arrays and tensors are cast where no value changes: bool and integers to wider
    integers, floats to wider floats, any byte order to the machine's. Numbers in lists get the port's type;
    an integer port requires integers within its range.

    Raises InputError for anything else.
    """
    wanted = numpy_type(port.dtype)
    if type(value) is np.ndarray and value.dtype == wanted:
        return value
    if isinstance(value, _NUMBERS) and not isinstance(value, np.generic):
        return _from_numbers(port, value, wanted)
    array = np.asarray(value) if isinstance(value, _ARRAYS) else _convert_foreign(port, value)
    if array.dtype == wanted:
        return array
    if not _is_widening(array.dtype, wanted):
        raise InputError(
            f"input {port.name!r} is {TensorType(str(array.dtype), array.shape)}, but must be {port}: "
            f"only casts that lose nothing are made. Feed .astype({port.dtype!r}) if that is what you mean."
        )
    return array.astype(wanted)


def _convert_nested(port: Port, value: Any) -> Any:
    """A feed of a sequence or of an optional value, the arrays in it converted."""
    if port.is_optional:
        return next((_convert_array(element, x) for element, x in port.elements(value)), None)
    if not isinstance(value, list | tuple):
        raise InputError(
            f"input {port.name!r} must be {port}, but is a {type(value).__name__}: feed a list of arrays."
        )
    return [_convert_array(element, x) for element, x in port.elements(value)]


def _convert_array(port: Port, value: Any) -> Any:
    return convert_feed(port, value) if port.element is None else _convert_nested(port, value)


@lru_cache(maxsize=256)
def _is_widening(source: np.dtype, target: np.dtype) -> bool:
    """Whether every number of `source` is one of `target`, and integers stay integers."""
    kinds = _kind(source), _kind(target)
    is_same_kind = kinds[0] == kinds[1] or kinds == ("bool", "int")
    return is_same_kind and "" not in kinds and np.can_cast(source, target, "safe")


def _kind(dtype: np.dtype) -> str:
    """ "bool", "int", "float" or "complex", or "" for a type that is not numeric.

    Decided by name, because the types of ml_dtypes have no numpy kind.
    """
    found = _KINDS.match(dtype.name)
    return found.group(1) if found else ""


def _convert_foreign(port: Port, value: Any) -> np.ndarray:
    """Convert another library's tensor without importing the library."""
    kind = type(value).__name__
    try:
        array = np.asarray(value)
        if array.dtype == object and hasattr(value, "__dlpack__"):
            array = np.from_dlpack(value)
    except (TypeError, ValueError, RuntimeError, BufferError) as error:
        raise InputError(
            f"input {port.name!r} is a {kind} that numpy cannot read: {error} Feed it as a numpy array."
        ) from error
    if not _kind(array.dtype):
        raise InputError(
            f"input {port.name!r} is a {kind}; feed a numpy array, a tensor in this machine's memory, or a "
            "list of numbers."
        )
    return array


def _from_numbers(port: Port, value: Any, wanted: np.dtype) -> np.ndarray:
    """Convert Python numbers, which have no dtype, to the port's type."""
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError, BufferError) as error:
        raise InputError(f"input {port.name!r} is not a regular list of numbers: {error}.") from error
    if array.size and not _kind(array.dtype):
        raise InputError(f"input {port.name!r} must hold numbers of {port.dtype}, but holds {array.dtype}.")
    with np.errstate(all="ignore"):
        cast = array.astype(wanted)
        is_kept = np.array_equal(cast, array) or (
            _kind(wanted) in ("float", "complex") and np.array_equal(np.isfinite(cast), np.isfinite(array))
        )
    if not is_kept:
        raise InputError(
            f"input {port.name!r} must be {port}, but holds numbers from {array.min()} to {array.max()} that "
            f"are no {port.dtype}."
        )
    return cast
