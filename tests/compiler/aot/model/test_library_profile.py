"""The profile of a target device: only one of the same model, arithmetic, threads and lengths is used."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pliant.api.compile_library import LibraryOptions, compile_elastic
from pliant.api.resolve import resolve_elastic
from pliant.compiler.executable.call import Target
from pliant.errors import InputError
from pliant.ir.device import DeviceProfile
from pliant.kernels.emit.isa import host_isa
from pliant.profile.profile_cache import save_profile
from tests.compiler.aot.model.conftest import LENGTH, TARGETS_S, a_profile

OPTIONS = LibraryOptions(TARGETS_S, preload_bytes=0, length=LENGTH, target=Target(host_isa(), 2))


@pytest.fixture
def store(tiny_stores: Callable[..., Path]) -> Path:
    return tiny_stores()


def _compile(store: Path, profile: DeviceProfile, options: LibraryOptions, folder: Path) -> None:
    path = save_profile(folder / "pi.json", profile)
    model = resolve_elastic(str(store), "test")
    compile_elastic(model, "tiny", replace(options, profile=path), folder / "out")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            replace(OPTIONS, target=Target(host_isa(), 3)),
            "of 2 threads, and the library of 3; give --threads 2",
        ),
        (replace(OPTIONS, compute="int8"), "fp32 p6, and the library of .* int8 p6; make one"),
    ],
    ids=["threads", "arithmetic"],
)
def test_a_profile_of_something_else_is_refused(
    store: Path, options: LibraryOptions, said: str, tmp_path: Path
) -> None:
    """Its times are not those of the library, whose plans would miss their targets on the device."""
    with pytest.raises(InputError, match=said):
        _compile(store, a_profile(store, "fp32"), options, tmp_path)
    assert not (tmp_path / "out").exists()


def test_a_profile_of_another_model_is_refused(
    store: Path, tiny_stores: Callable[..., Path], tmp_path: Path
) -> None:
    """Both have the same widths, so that plans can be made; the other's layers take another time."""
    other = a_profile(tiny_stores("roberta"), "fp32")
    with pytest.raises(InputError, match=r"is of roberta .* and the library of bert"):
        _compile(store, other, OPTIONS, tmp_path)


def test_a_profile_of_shorter_inputs_is_refused(store: Path, tmp_path: Path) -> None:
    """Longer ones would be planned as if they were as long as its longest."""
    whole = a_profile(store, "fp32")
    short = replace(
        whole,
        layers=tuple(row for row in whole.layers if row.length == 8),
        overheads=tuple(row for row in whole.overheads if row.length == 8),
    )
    with pytest.raises(InputError, match="up to 8 tokens, and the library of up to 24; give --length 8"):
        _compile(store, short, OPTIONS, tmp_path)


def test_a_profile_of_the_same_is_used(store: Path, tmp_path: Path) -> None:
    """With or without a linker."""
    _compile(store, a_profile(store, "fp32"), OPTIONS, tmp_path)
    assert (tmp_path / "out" / "pliant_model.h").exists()
