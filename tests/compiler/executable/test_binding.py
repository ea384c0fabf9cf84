"""What a program is bound to: some of it stays alive with it, some is the caller's."""

import gc
import weakref

import numpy as np

from pliant.compiler.executable.binding import BoundProgram
from pliant.compiler.executable.encode_image import encode, image_kernels
from pliant.compiler.executable.kernel_addresses import load_kernels
from pliant.ir.graph import Node
from pliant.kernels.emit.isa import host_isa
from pliant.kernels.runtime.aligned_memory import aligned_bytes
from pliant.kernels.runtime.buffer import Buffer
from tests.compiler.executable.test_image import N_BYTES, SHAPE, an_image
from tests.compiler.rules.run_node import machine


def _floats() -> np.ndarray:
    return aligned_bytes(N_BYTES).view(np.float32).reshape(SHAPE)


def test_what_many_calls_read_is_lent_like_what_one_reads() -> None:
    """Few addresses are written at once, more of them when the program is walked: all must be the latest."""
    library, pool = machine(host_isa())
    outputs = tuple(f"y{i}" for i in range(7))
    image = an_image(tuple(Node("Neg", ("x",), (y,)) for y in outputs), outputs)
    bound = BoundProgram(encode(image), load_kernels(image_kernels(image), library))
    held = {y: _floats() for y in outputs}
    for turn in range(3):
        x = _floats()
        x[:] = turn + np.arange(x.size).reshape(SHAPE)
        bound.lend("x", x)
        for y in outputs:
            if turn != 1:  # the addresses of a run before stay
                held[y] = _floats()
                bound.lend(y, held[y])
        pool.walk(bound.table)
        for y in outputs:
            np.testing.assert_array_equal(held[y], -x)


def test_a_program_keeps_what_it_is_pointed_at_and_not_what_it_is_lent() -> None:
    """Weights must outlast every walk; an answer that nobody holds any more must not stay in memory."""
    library, pool = machine(host_isa())
    image = an_image((Node("Neg", ("x",), ("y",)),), ("y",))
    bound = BoundProgram(encode(image), load_kernels(image_kernels(image), library))
    x, y = _floats(), _floats()
    x[:] = np.arange(x.size).reshape(SHAPE)
    seen, given = weakref.ref(x), weakref.ref(y)
    bound.point("x", Buffer.of(x))
    bound.lend("y", y)
    wanted = -x
    del x
    gc.collect()
    pool.walk(bound.table)
    np.testing.assert_array_equal(y, wanted)
    del y
    gc.collect()
    assert seen() is not None
    assert given() is None
    bound.point("x", Buffer.of(_floats()))
    gc.collect()
    assert seen() is None
