"""What a session takes as a feed: arrays, tensors, lists; cast only where no number changes."""

import subprocess
import sys
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.errors import InputError
from pliant.ir.graph import numpy_type
from pliant.ir.port import Port
from pliant.run.session.feeds import convert_feed, convert_feeds

_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_FLOATS = ("float16", "bfloat16", "float32", "float64")


def _port(dtype: str) -> Port:
    return Port("x", dtype, None)


@pytest.mark.parametrize("wanted", _INTEGERS)
@pytest.mark.parametrize("given_", ["bool", *_INTEGERS])
def test_integers_are_cast_exactly_where_all_fit(given_: str, wanted: str) -> None:
    """int32 ids for an int64 input are what many tokenizers give; a cast that may wrap is refused."""
    given_type, wanted_type = np.dtype(given_), np.dtype(wanted)
    if given_ == "bool":
        values = np.array([False, True])
        fits = True
    else:
        values = np.array([np.iinfo(given_type).min, np.iinfo(given_type).max], given_type)
        fits = all(np.iinfo(wanted_type).min <= int(v) <= np.iinfo(wanted_type).max for v in values)
    if not fits:
        with pytest.raises(
            InputError, match=rf"is {given_}\[2\], but must be {wanted}.*only casts that lose"
        ):
            convert_feed(_port(wanted), values)
        return
    found = convert_feed(_port(wanted), values)
    assert found.dtype == wanted_type
    assert found.tolist() == values.tolist()


@pytest.mark.parametrize("wanted", _FLOATS)
@pytest.mark.parametrize("given_", _FLOATS)
def test_floats_are_cast_only_to_wider_ones(given_: str, wanted: str) -> None:
    """A float64 array rounded in silence is the bug that nobody finds."""
    source, target = numpy_type(given_), numpy_type(wanted)
    infos = ml_dtypes.finfo(source), ml_dtypes.finfo(target)
    fits = infos[0].nmant <= infos[1].nmant and infos[0].maxexp <= infos[1].maxexp
    values = np.array([1.5, -0.25], source)
    if fits:
        assert convert_feed(_port(wanted), values).tolist() == [1.5, -0.25]
    else:
        with pytest.raises(InputError, match="but must be"):
            convert_feed(_port(wanted), values)


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (np.uint8([200]), "float32"),
        (np.float32([1]), "int64"),
        (np.int64([1]), "bool"),
        (np.array(["1"]), "int64"),
        (np.array([None]), "int64"),
        (np.complex64([1]), "float32"),
        (b"12", "uint8"),
        ("12", "int64"),
        (None, "float32"),
        ({"x": 1}, "float32"),
        ([[1], [2, 3]], "int64"),
        ([1.5, 2.0], "int64"),
        ([300], "uint8"),
        ([-1], "uint32"),
        ([1 << 70], "int64"),
        ([2], "bool"),
        ([1e6], "float16"),
        (["a"], "float32"),
        ([None], "float32"),
    ],
)
def test_what_would_change_is_refused_by_name(value: Any, wanted: str) -> None:
    """Pixels are no shares of one, floats no ids, and text no number: the user says what is meant."""
    with pytest.raises(InputError, match="input 'x'"):
        convert_feed(_port(wanted), value)


@given(st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=4), st.sampled_from(_INTEGERS))
def test_whole_numbers_of_lists_keep_their_value_or_are_refused(numbers: list[int], wanted: str) -> None:
    """Python's integers have no width; those of the input may not wrap."""
    info = np.iinfo(wanted)
    if all(info.min <= n <= info.max for n in numbers):
        found = convert_feed(_port(wanted), numbers)
        assert (found.dtype, found.tolist()) == (np.dtype(wanted), numbers)
    else:
        with pytest.raises(InputError, match=f"that are no {wanted}"):
            convert_feed(_port(wanted), numbers)


def test_numbers_of_lists_take_the_ports_type() -> None:
    """[0.1, 1] is how people write float32; rounding to the nearest is what they mean."""
    assert np.array_equal(convert_feed(_port("float32"), [[0.1, 1]]), np.float32([[0.1, 1]]))
    assert convert_feed(_port("float32"), [float("inf"), float("nan")]).dtype == np.float32
    assert convert_feed(_port("float32"), 2).shape == ()
    assert convert_feed(_port("int64"), []).tolist() == []
    assert convert_feed(_port("int64"), [1.0, 2.0]).tolist() == [1, 2]
    assert convert_feed(_port("bool"), [[True], [False]]).tolist() == [[True], [False]]


def test_other_byte_orders_are_the_same_numbers() -> None:
    """Arrays read from files of other machines."""
    found = convert_feed(_port("int64"), np.array([1, 2], ">i4"))
    assert found.dtype == np.dtype("=i8")
    assert found.tolist() == [1, 2]


class _Exporter:
    """A tensor of a library that speaks nothing but DLPack."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()


class _Elsewhere:
    """A tensor on an accelerator: it says itself what to do."""

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        raise TypeError("Use Tensor.cpu() to copy the tensor to host memory first.")


def test_tensors_are_read_through_the_protocols() -> None:
    """JAX, torch, cupy on the host: none of them is imported for it."""
    assert convert_feed(_port("int64"), _Exporter(np.int32([3, 4]))).tolist() == [3, 4]
    with pytest.raises(InputError, match=r"is a _Elsewhere that numpy cannot read: Use Tensor\.cpu\(\)"):
        convert_feed(_port("int64"), _Elsewhere())


def test_torch_tensors_are_taken() -> None:
    """`tokenizer(..., return_tensors="pt")` and any model before this one give these."""
    torch = pytest.importorskip("torch")
    assert convert_feed(_port("int64"), torch.tensor([[1, 2]], dtype=torch.int32)).tolist() == [[1, 2]]
    assert convert_feed(_port("float32"), [torch.ones(2), torch.zeros(2)]).tolist() == [[1, 1], [0, 0]]
    with pytest.raises(InputError, match=r"tensor\.detach\(\)"):
        convert_feed(_port("float32"), torch.ones(2, requires_grad=True))


def test_torch_is_not_imported_for_it() -> None:
    """It would be a second of start-up and 200 MB for every session."""
    code = (
        "import sys; from pliant.run.session.feeds import convert_feed; from pliant.ir.port import Port; "
        "convert_feed(Port('x', 'int64', None), [1]); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_feeds_must_be_the_inputs() -> None:
    """A misspelt name is not dropped."""
    with pytest.raises(InputError, match=r"'x' is missing; there is no input 'y'\. The inputs are x: int64"):
        convert_feeds([_port("int64")], {"y": [1]})


@pytest.mark.parametrize("feeds", ["text", 3, None, [np.zeros(1)]])
def test_feeds_without_names_are_refused(feeds: Any) -> None:
    """A text or one array, given to `profile` or in place of `run_many`'s list, was an AttributeError."""
    with pytest.raises(InputError, match=f"given by name, .* not as a {type(feeds).__name__}"):
        convert_feeds([_port("int64")], feeds)
