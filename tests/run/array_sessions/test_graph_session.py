"""Sessions on compiled directories: what is fed, and what their plan says."""

from pathlib import Path

import numpy as np
import pytest

import pliant
from pliant.compiler.aot.compiled_directory import compiled_identity, save
from pliant.compiler.executable.call import Target
from pliant.compiler.executable.image import make_image
from pliant.errors import InputError
from pliant.ir.graph import Graph, Node, TensorType
from pliant.kernels.emit.isa import host_isa
from pliant.run.array_sessions.graph_session import GraphSession

ROWS = TensorType("float32", (64, 64))


@pytest.fixture
def session(tmp_path: Path) -> GraphSession:
    """Three steps."""
    nodes = (
        Node("MatMul", ("x", "x"), ("a",)),
        Node("Transpose", ("a",), ("b",)),
        Node("MatMul", ("b", "a"), ("y",)),
    )
    graph = Graph(nodes, ("x",), ("y",), dict.fromkeys("xaby", ROWS))
    save(make_image(graph, Target(host_isa(), 2)), tmp_path / "graph")
    return pliant.load(tmp_path / "graph", threads=2)


def test_lists_and_calls_work_as_for_compiled_models(session: GraphSession) -> None:
    """`pliant.load` gives the same kind of session as `pliant.compile`."""
    x = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    assert np.array_equal(session(x.tolist()).output, session.run({"x": x})["y"])
    with pytest.raises(InputError, match=r"'x' is float32\[1,1\], but must be float32\[64,64\]"):
        session.run({"x": [[1.0]]})


def test_its_plan_is_its_one_image(session: GraphSession, tmp_path: Path) -> None:
    """Known before the first run: nothing is compiled later."""
    assert session.plan == session.explain(7)
    (image,) = session.plan.images
    assert image.inputs == {"x": ROWS}
    assert {o.op: o.n_calls for o in image.operators}["MatMul"] == 2
    assert (session.name, session.identity) == ("graph", compiled_identity(tmp_path / "graph"))
    session.close()
    assert session.plan.images == ()
