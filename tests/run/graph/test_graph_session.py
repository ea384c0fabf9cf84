"""Sessions on one program: what is fed is checked, and threads take turns."""

import threading

import numpy as np
import pytest

from pliant.compiler.executable.call import Target
from pliant.compiler.executable.image import make_image
from pliant.errors import InputError
from pliant.ir.graph import Graph, Node, TensorType
from pliant.kernels.emit.isa import host_isa
from pliant.kernels.runtime.jit import Library
from pliant.kernels.runtime.thread_pool import Pool
from pliant.run.graph.graph_session import CompiledSession, open_image

ROWS = TensorType("float32", (64, 64))


@pytest.fixture
def session() -> CompiledSession:
    """Three steps, so that two runs at once would overwrite each other's arena."""
    nodes = (
        Node("MatMul", ("x", "x"), ("a",)),
        Node("Transpose", ("a",), ("b",)),
        Node("MatMul", ("b", "a"), ("y",)),
    )
    graph = Graph(nodes, ("x",), ("y",), dict.fromkeys("xaby", ROWS))
    isa = host_isa()
    library = Library(isa)
    return open_image(make_image(graph, Target(isa, 2)), Pool(2, library), library)


def test_threads_take_turns(session: CompiledSession) -> None:
    """Each gets the answer to its own feed."""
    feeds = [np.random.default_rng(i).standard_normal((64, 64)).astype(np.float32) for i in range(4)]
    wanted = [session.run({"x": x})["y"] for x in feeds]
    wrong: list[int] = []

    def work(i: int) -> None:
        answers = [session.run({"x": feeds[i]})["y"] for _ in range(50)]
        wrong.extend(i for y in answers if not np.array_equal(y, wanted[i]))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_lists_and_calls_work_as_for_compiled_models(session: CompiledSession) -> None:
    """`pliant.load` gives the same kind of session as `pliant.compile`."""
    x = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    assert np.array_equal(session(x.tolist()), session.run({"x": x})["y"])
    with pytest.raises(InputError, match=r"'x' is float32\[1,1\], but must be float32\[64,64\]"):
        session.run({"x": [[1.0]]})
