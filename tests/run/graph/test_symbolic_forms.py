"""Sessions whose shapes change: a new shape is bound to an executable that is there, answers are the same."""

import warnings
from typing import Any

import numpy as np
import onnxruntime
import pytest

from pliant.api.compile_onnx import compile
from pliant.compiler.executable.call import Target
from pliant.compiler.executable.encode_image import EncodedProgram, encode
from pliant.compiler.executable.image import Image, make_image
from pliant.compiler.executable.symbolic_program import SymbolicProgram
from pliant.compiler.rules.rules import RULES
from pliant.errors import KernelError
from pliant.ir.check.executable_check import executable_faults
from pliant.ir.executable import Address, Executable, Formula, Number, concrete
from pliant.ir.graph import Graph
from pliant.ir.text.executable_text import executable_text, parse_executable
from pliant.kernels.emit.isa import host_isa
from pliant.kernels.runtime.jit import Library
from pliant.kernels.runtime.thread_pool import ThreadPool
from pliant.models.onnx.bind.onnx_bind import bind_first
from pliant.models.onnx.bind.onnx_blocks import BoundPart
from pliant.models.onnx.bind.onnx_symbolic import SymbolicGraph, symbolic_graph
from pliant.models.onnx.onnx_file import open_onnx
from pliant.run.graph.open_graph import GraphOpener
from pliant.run.graph.schedule_graph import GraphScheduler
from pliant.run.graph.symbolic_forms import SymbolicForm
from pliant.run.session.ports import symbols
from tests.models.onnx_models import parse

_WEIGHTS = ", ".join(f"float[16,16] w{i}" for i in range(4))

ENCODER = parse(f"""
    g (float[B,N,16] x, int64[B,N] mask, {_WEIGHTS}, float[16,48] up, float[48,16] down, float[16] ones,
       float[16] zeros) => (float[B,N,16] y)
    <int64[4] heads = {{0, 0, 2, 8}}, int64[3] joined = {{0, 0, 16}}, int64[2] axes = {{1, 2}},
     float one = {{1}}, float far = {{-1e9}}, float scale = {{0.35}}, float root = {{1.4142135}},
     float half = {{0.5}}>
    {{
      q0 = MatMul(x, w0) q1 = Reshape(q0, heads) q = Transpose<perm=[0,2,1,3]>(q1)
      k0 = MatMul(x, w1) k1 = Reshape(k0, heads) k = Transpose<perm=[0,2,3,1]>(k1)
      v0 = MatMul(x, w2) v1 = Reshape(v0, heads) v = Transpose<perm=[0,2,1,3]>(v1)
      m0 = Unsqueeze(mask, axes) m1 = Cast<to=1>(m0) m2 = Sub(one, m1) m = Mul(m2, far)
      s0 = MatMul(q, k) s1 = Mul(s0, scale) s2 = Add(s1, m) s = Softmax<axis=-1>(s2)
      a0 = MatMul(s, v) a1 = Transpose<perm=[0,2,1,3]>(a0) a2 = Reshape(a1, joined) a3 = MatMul(a2, w3)
      r = Add(a3, x) n = LayerNormalization(r, ones, zeros)
      f0 = MatMul(n, up) f1 = Div(f0, root) f2 = Erf(f1) f3 = Add(f2, one) f4 = Mul(f0, f3) f5 = Mul(f4, half)
      f6 = MatMul(f5, down) z = Add(f6, n) y = LayerNormalization(z, ones, zeros)
    }}
""")
"""One layer of an encoder; batch and rows are open."""

DECODER = parse("""
    g (int64[1,S] ids, float[1,2,P,8] past, float[30,16] words, float[600,16] places, float[16,16] w)
      => (float[1,S,16] y, float[1,2,T,8] present)
    <int64[4] heads = {0, 0, 2, 8}, int64[3] joined = {0, 0, 16}, int64 two = {2}, int64 one = {1}>
    {
      sizes = Shape(past) before = Gather(sizes, two) ids_shape = Shape(ids) rows = Gather(ids_shape, one)
      end = Add(before, rows) range = Range(before, end, one) place = Gather(places, range)
      word = Gather(words, ids) x = Add(word, place)
      k0 = MatMul(x, w) k1 = Reshape(k0, heads) k2 = Transpose<perm=[0,2,1,3]>(k1)
      present = Concat<axis=2>(past, k2) t = Transpose<perm=[0,1,3,2]>(present)
      s0 = MatMul(k2, t) s = Softmax<axis=-1>(s0) a = MatMul(s, present)
      a1 = Transpose<perm=[0,2,1,3]>(a) a2 = Reshape(a1, joined) y = Add(a2, x)
    }
""")
"""A step of a decoder: keys, which are values too, grow by a row."""


def _with_weights(model: Any, data: tuple[str, ...]) -> Any:
    """The model whose inputs other than `data` are constants."""
    from onnx import numpy_helper

    made = type(model)()
    made.CopyFrom(model)
    rng = np.random.default_rng(0)
    inputs = list(made.graph.input)
    del made.graph.input[:]
    for port in inputs:
        if port.name in data:
            made.graph.input.append(port)
            continue
        shape = [d.dim_value for d in port.type.tensor_type.shape.dim]
        values = rng.standard_normal(shape).astype(np.float32) / 4
        made.graph.initializer.append(numpy_helper.from_array(values, port.name))
    return made


@pytest.fixture(scope="module")
def encoder() -> Any:
    return _with_weights(ENCODER, ("x", "mask"))


@pytest.fixture(scope="module")
def decoder() -> Any:
    return _with_weights(DECODER, ("ids", "past"))


def _texts(batch: int, n: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(n)
    mask = np.ones((batch, n), np.int64)
    mask[:, -1] = 0
    return {"x": rng.standard_normal((batch, n, 16)).astype(np.float32), "mask": mask}


def test_a_new_length_is_bound_and_not_compiled(encoder: Any, lowered: list[Graph]) -> None:
    """Texts come in all lengths; compiling each takes longer than running it."""
    session = compile(encoder, threads=2)
    for n in (40, 17, 99, 5, 100):
        session.run(_texts(1, n))
    assert len(lowered) == 1


def test_lengths_stay_open_after_the_compiler_failed_once(
    encoder: Any, lowered: list[Graph], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process had been killed for lack of memory, and each length was compiled alone from then on."""
    opening, failures = GraphOpener.open_form, [KernelError("the compiler was killed")]

    def flawed(self: GraphOpener, graph: SymbolicGraph) -> SymbolicForm:
        if failures:
            raise failures.pop()
        return opening(self, graph)

    monkeypatch.setattr(GraphOpener, "open_form", flawed)
    session = compile(encoder, threads=2)
    for n in (40, 17, 99, 5, 100):
        session.run(_texts(1, n))
    assert not failures
    assert len(lowered) == 2  # one length alone, then all others


@pytest.mark.parametrize("batch", [1, 3])
def test_answers_are_those_of_a_model_that_is_compiled_for_the_shape_alone(encoder: Any, batch: int) -> None:
    """To the bit: the same kernels run in the same blocks, wherever their tensors lie."""
    session = compile(encoder, threads=2)
    for n in (40, 2, 17, 64, 1, 145, 150, 300, 18):
        feeds = _texts(batch, n)
        alone = compile(encoder, threads=2, dims={"B": batch, "N": n})
        assert np.array_equal(session.run(feeds)["y"], alone.run(feeds)["y"]), n


def test_a_batch_and_its_length_are_open_together(encoder: Any, lowered: list[Graph]) -> None:
    """A service puts as many texts together as wait."""
    session = compile(encoder, threads=2)
    for batch, n in ((3, 40), (2, 60), (4, 30), (2, 33), (7, 20)):
        session.run(_texts(batch, n))
    assert len(lowered) == 1


def test_a_growing_past_is_one_executable(decoder: Any, lowered: list[Graph]) -> None:
    """Every step of a decoder has a shape of its own; onnxruntime is the reference."""
    session = compile(decoder, threads=2)
    peer = onnxruntime.InferenceSession(decoder.SerializeToString(), providers=["CPUExecutionProvider"])
    past = np.random.default_rng(0).standard_normal((1, 2, 8, 8)).astype(np.float32)
    for step in range(40):
        feeds = {"ids": np.array([[step % 30]]), "past": past}
        found = session.run(feeds)
        for own, other in zip(found.values(), peer.run(None, feeds), strict=True):
            assert np.allclose(own, other, rtol=1e-5, atol=1e-5), step  # sums of 16 products of float32
        past = found["present"]
    assert len(lowered) == 1


def test_shapes_that_are_evicted_and_bound_again_do_not_warn(encoder: Any) -> None:
    """The warning tells of time that is lost; binding takes none worth a warning."""
    session = compile(encoder, threads=1, images=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for n in (40, 17, 40, 17):
            session.run(_texts(1, n))


def test_weights_are_held_once_for_all_shapes(encoder: Any) -> None:
    """A form shares its packed matrices with the images that are bound to it, and with other forms."""
    session = compile(encoder, threads=2, images=2)
    session.run(_texts(1, 40))
    before = session.weight_bytes
    for n in (17, 150, 99, 2, 300):
        session.run(_texts(1, n))
    assert session.weight_bytes == before


def test_memory_does_not_grow_with_the_shapes_met(encoder: Any) -> None:
    """The arena is as large as for the next power of two, not for all lengths together."""
    session = compile(encoder, threads=2)
    session.run(_texts(1, 128))
    largest = session.arena_bytes
    for n in range(65, 128):
        session.run(_texts(1, n))
    assert session.arena_bytes == largest


def _comparable(program: EncodedProgram) -> tuple[object, ...]:
    """All of a program but where tensors lie in the arena."""
    rows = [
        (r.kernel, r.arguments, r.n_units, r.grain, r.op, r.flops, r.n_bytes, r.fault) for r in program.rows
    ]
    addresses = [(a.at, a.space, a.offset if a.space else 0) for a in program.addresses]
    return (program.arguments, rows, addresses, program.inputs, program.outputs, program.scratch_bytes)


@pytest.mark.parametrize("model", ["encoder", "decoder"])
def test_a_bound_program_is_the_one_that_is_compiled(model: str, request: pytest.FixtureRequest) -> None:
    """Number by number, for all sizes that the program holds for: nothing leaks past the symbols."""
    opened = open_onnx(request.getfixturevalue(model))
    shapes: dict[str, tuple[int, ...]] = (
        {"x": (2, 40, 16), "mask": (2, 40)} if model == "encoder" else {"ids": (1, 1), "past": (1, 2, 9, 8)}
    )
    ports = {port.name: symbols(port) for port in opened.inputs}

    def bound(given: dict[str, tuple[int, ...]]) -> BoundPart:
        return bind_first(opened, {}, supported=RULES, shapes=given, keeps_lookups=True)

    found = symbolic_graph(shapes, ports, bound)
    assert found is not None
    sizes = found.family.sizes(shapes)
    assert sizes is not None
    library = Library(host_isa())
    with ThreadPool(2, library) as pool:
        planner = GraphScheduler("static", pool, library)

        def image(graph: SymbolicGraph) -> Image:
            return make_image(planner.schedule(graph.graph).graph, Target(library.isa, 2))

        here = found.at(sizes)
        program = SymbolicProgram(image(here), here.trace, found.family.names)
        held = [n for n in range(2, 140, 3) if program.is_valid_for((*sizes[:-1], n))]
        for n in held:
            alone = encode(image(found.at((*sizes[:-1], n))))
            assert _comparable(program.at((*sizes[:-1], n))) == _comparable(alone), n
    assert len(held) >= 20


def test_images_that_would_be_compiled_again_are_kept_before_others(
    encoder: Any, lowered: list[Graph]
) -> None:
    """A text of one word broadcasts, so that it has an image of its own, which longer ones outnumber."""
    session = compile(encoder, threads=1, images=2)
    session.run(_texts(1, 40))
    session.run(_texts(1, 1))
    before = len(lowered)
    for n in (17, 18, 1, 19, 20, 1):
        session.run(_texts(1, n))
    assert len(lowered) == before


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_an_executable_of_open_sizes_prints_and_parses_with_its_formulas(
    kind: str, request: pytest.FixtureRequest
) -> None:
    """What is bound for a new shape can be read, judged, and computed from the text alone."""
    session = compile(request.getfixturevalue(kind), threads=2)
    ids = np.zeros((1, 1), np.int64)
    feeds: list[dict[str, np.ndarray]] = [
        _texts(2, n) if kind == "encoder" else {"ids": ids, "past": np.zeros((1, 2, n, 8), np.float32)}
        for n in (17, 40)
    ]
    found, other = (session.executable(given) for given in feeds)
    for executable in (found, other):
        assert parse_executable(executable_text(executable)).executable == executable
        assert list(executable_faults(executable)) == []
        assert all(len(constant.digest) == 64 for constant in executable.constants)
    sizes = dict(other.sizes)
    assert len(sizes) > 0
    assert sizes != dict(found.sizes)
    assert sum(isinstance(number, Formula) for number in _numbers(found)) > 0
    sizes |= {f"offset{i}": tensor.offset for i, tensor in enumerate(other.tensors)}
    for one, another in zip(_numbers(found), _numbers(other), strict=True):
        assert not isinstance(one, Formula) or one.at(sizes) == concrete(another)


def _numbers(executable: Executable) -> list[Number]:
    """Sizes of tensors, work of calls, and what they are told, in order."""
    found = [tensor.n_bytes for tensor in executable.tensors]
    for call in executable.calls:
        found += [call.n_units, call.grain]
        values = [v for _, value in call.arguments for v in (value if isinstance(value, tuple) else (value,))]
        found += [
            v.offset if isinstance(v, Address) else v
            for v in values
            if isinstance(v, int | Formula | Address)
        ]
    return found
