"""Elastic sessions on a processor with AMX, or where a handler runs the instructions that this one lacks."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from pliant.kernels.emit.isa import AVX512_AMX, AVX512_BF16, Isa, host_isa, is_runnable
from pliant.models.tokenizer import TokenizedInput
from pliant.run.submodel.engine import Engine
from pliant.store.read import open_store
from tests.kernels.tiles.amx_trap import Executed, Trap, claimed, missing
from tests.tiny import random_ids

pytestmark = pytest.mark.skipif(missing() is not None, reason=missing() or "")
LENGTHS = (1, 9, 17, 24)


@pytest.fixture
def trap(tmp_path: Path) -> Iterator[Trap | None]:
    """This CPU has AMX, or says so: then its instructions are counted."""
    if is_runnable(AVX512_AMX):
        yield None
        return
    trap = Trap(tmp_path)
    with claimed():
        assert host_isa() == AVX512_AMX
        yield trap


def executed(trap: Trap | None, what: Executed) -> int:
    """How often so far, where that is counted."""
    return 0 if trap is None else trap.count(what)


def answers(store_path: Path, cache: Path, compute: str, isa: Isa | None = None) -> list[np.ndarray]:
    """Of inputs short and long, by two threads; the process's best row unless `isa` says otherwise."""
    with (
        open_store(store_path) as store,
        Engine(store, cache=cache, n_threads=2, tokens=max(LENGTHS), compute=compute, isa=isa) as engine,  # type: ignore[arg-type]
    ):
        layers = tuple(range(store.spec.n_layers))
        engine.hold(np.full((store.spec.n_layers, store.spec.n_heads), 6))
        inputs = [TokenizedInput(*random_ids(store.spec, n)) for n in LENGTHS]
        return [engine.answer(x, layers, store.spec.n_heads).copy() for x in inputs]


@pytest.mark.parametrize(
    ("compute", "multiplied", "error"),
    [
        # Products are equal to the bit; attention's error may turn a rounding of the next layer's rows.
        ("int8", Executed.BYTES, 2.0**-7),
        # The same factors; sums in another order may turn some roundings to eight bits of the next layer.
        ("bf16", Executed.BFLOATS, 2.0**-7),
        # Split products err by 3e-6 of their size, and layers add that up.
        ("fp32", Executed.BFLOATS, 1e-4),
    ],
    ids=["int8", "bf16", "fp32"],
)
def test_answers_are_near_those_of_vectors(
    compute: str,
    multiplied: Executed,
    error: float,
    trap: Trap | None,
    tiny_store: Callable[..., Path],
    kernel_cache: Path,
) -> None:
    """Within what each kind of product may err, and by products of tiles."""
    path, before = tiny_store(), executed(trap, multiplied)
    made = answers(path, kernel_cache, compute)
    assert trap is None or trap.count(multiplied) > before
    for x, y in zip(made, answers(path, kernel_cache, compute, AVX512_BF16), strict=True):
        np.testing.assert_allclose(x, y, atol=error * np.abs(y).max())


def test_a_forked_child_may_use_tiles(
    trap: Trap | None, tiny_store: Callable[..., Path], kernel_cache: Path
) -> None:
    """The permission is inherited, and each kernel call configures tiles for itself."""
    path = tiny_store()
    with (
        open_store(path) as store,
        Engine(store, cache=kernel_cache, n_threads=2, tokens=16, compute="int8") as engine,
    ):
        layers = tuple(range(store.spec.n_layers))
        engine.hold(np.full((store.spec.n_layers, store.spec.n_heads), 6))
        encoded = TokenizedInput(*random_ids(store.spec, 16))
        wanted = engine.answer(encoded, layers, store.spec.n_heads).copy()
        child = os.fork()
        if child == 0:
            is_same = np.array_equal(engine.answer(encoded, layers, store.spec.n_heads), wanted)
            os._exit(0 if is_same else 1)
        assert os.waitpid(child, 0)[1] == 0
    assert trap is None or not trap.is_configured
