"""Binding: shapes become numbers, what is known is folded, functions expanded, old opsets translated."""

import numpy as np
import pytest
from onnx import helper, numpy_helper

from pliant.errors import GraphError, InputError, MissingValueError
from tests.compiler.passes.read_graph import EVERY_OPERATOR, body
from tests.models.onnx_models import bound, first_part, parse

FLATTEN = """g (float[N,T,4] x) => (float[a,b] y) {
  s = Shape(x)
  i = Constant <value = int64 {0}> () o = Constant <value = int64[1] {0}> ()
  n = Gather <axis = 0> (s, i) m = Unsqueeze(n, o)
  r = Constant <value = int64[1] {-1}> ()
  t = Concat <axis = 0> (m, r)
  y = Reshape(x, t) }"""


def test_computations_on_shapes_vanish() -> None:
    """Half of an exporter's nodes compute shapes, which are numbers by now."""
    graph = bound(parse(FLATTEN), {"N": 2, "T": 3})
    assert body(graph) == ["y = Reshape (x, t)"]
    assert graph.constants["t"].tolist() == [2, -1]
    assert graph.types["y"].shape == (2, 12)


def test_computations_on_shapes_vanish_at_old_opsets() -> None:
    """Before opset 13, Unsqueeze had its axes as an attribute: torch's recurrent exports were refused."""
    graph = bound(
        parse(FLATTEN.replace("Unsqueeze(n, o)", "Unsqueeze <axes = [0]> (n)"), 11), {"N": 2, "T": 3}
    )
    assert body(graph) == ["y = Reshape (x, t)"]
    assert graph.constants["t"].tolist() == [2, -1]


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax", "Hardmax"])
def test_an_old_softmax_of_a_constant_keeps_its_meaning(op: str) -> None:
    """Before opset 13, it ran over all axes from the second on as one; ONNX's reference does not."""
    value = np.arange(8, dtype=np.float32).reshape(2, 2, 2)
    text = ", ".join(map(str, value.reshape(-1)))
    graph = bound(
        parse(
            f"""g (float[2,2,2] x) => (float[2,2,2] y) {{
        c = Constant <value = float[2,2,2] {{{text}}}> () s = {op}(c) y = Add(x, s) }}""",
            11,
        )
    )
    assert "s" not in graph.constants
    assert [node.op for node in graph.nodes] == ["Reshape", op, "Reshape", "Add"]


@pytest.mark.parametrize(
    ("dims", "said"),
    [
        ({"N": 2}, r"dimension 'T' of input 'x' \(float32\[N,T,4\]\) is not bound"),
        ({"N": 2, "T": -1}, "'T' is -1"),
        ({"N": 2, "T": 3, "S": 1}, r"no dimensions \['S'\]"),
    ],
)
def test_dimensions_must_be_bound_rightly(dims: dict[str, int], said: str) -> None:
    """A forgotten or misspelt one must not become some default."""
    with pytest.raises(InputError, match=said):
        bound(parse(FLATTEN), dims)


def test_an_unnamed_dimension_is_called_by_its_place() -> None:
    """Exporters leave dimensions without a name."""
    model = parse("g (float[?,2] x) => (float[a,2] y) { y = Relu(x) }")
    assert bound(model, {"x.0": 5}).types["y"].shape == (5, 2)


def test_a_shape_that_is_fed_is_asked_for_and_compiled_in() -> None:
    """`Reshape` to a shape known only at run time: one program for each value."""
    model = parse("g (float[6] x, int64[2] s) => (float[a,b] y) { t = Abs(s) y = Reshape(x, t) }")
    with pytest.raises(MissingValueError, match=r"follows from the inputs \['s'\]") as raised:
        bound(model)
    assert raised.value.names == {"s"}
    graph = bound(model, values={"s": np.int64([2, 3])})
    assert graph.inputs == ("x",)
    assert graph.types["y"].shape == (2, 3)


def test_a_shape_that_follows_from_long_data_is_left_to_the_host() -> None:
    """Compiling anew for each batch of data would be worse: the value is looked at when it is there."""
    model = parse(
        """g (float[90000] x, float[4] y) => (float[a] z) {
          m = ReduceMax <keepdims = 1> (x) n = Cast <to = 7> (m) z = Expand(y, n) }"""
    )
    part = first_part(model)
    assert [node.op for node in part.graph.nodes] == ["ReduceMax", "Cast"]
    assert part.graph.outputs == ("n",)
    assert [(placed.node.op_type, placed.host) for placed in part.waiting] == [("Expand", True)]


def test_a_shape_that_follows_from_weights_is_left_to_the_host() -> None:
    """A few tokens through a network are data, not arithmetic on shapes that could be done while binding."""
    graph = parse(
        "g (int64[2] x, float[4] y) => (float[a] z) { h = Gather(W, x) n = Cast<to = 7>(h) z = Expand(y, n) }"
    )
    graph.graph.initializer.append(numpy_helper.from_array(np.ones(5000, np.float32), "W"))
    assert [placed.node.op_type for placed in first_part(graph).waiting] == ["Expand"]


def test_what_reads_a_shape_of_data_waits_and_the_rest_does_not() -> None:
    """A part is as large as what is known allows."""
    part = first_part(
        parse(
            """g (float[6] x) => (int64[1,n] y, float[6] w, int64[1,n] u) {
              a = Abs(x) y = NonZero(a) w = Exp(a) u = Neg(y) }"""
        )
    )
    assert [node.op for node in part.graph.nodes] == ["Abs", "Exp"]
    assert part.graph.outputs == ("a", "w")
    assert [(placed.node.op_type, placed.host) for placed in part.waiting] == [
        ("NonZero", True),
        ("Neg", False),
    ]


def test_a_model_in_parts_is_no_graph() -> None:
    """C code holds one graph; the message says why this model is not one."""
    with pytest.raises(GraphError, match=r"not a single graph.*NonZero \(at 'y'\).*C code"):
        bound(parse("g (float[6] x) => (int64[1,n] y) { y = NonZero(x) }"))


def test_all_operators_without_a_kernel_are_named_at_once() -> None:
    """Learning of them one by one would cost a round each."""
    model = parse("g (float[6] x) => (float[6] y) { a = Erf(x) b = Sin(a) y = Add(b, a) }")
    with pytest.raises(GraphError, match=r"Erf \(at 'a'\); Sin \(at 'b'\)"):
        bound(model, supported={"Add"})


def test_a_branch_that_one_flag_says_is_bound_by_its_value() -> None:
    """A flag has two values: two programs are better than a branch in one."""
    model = parse(
        """g (bool c, float[2] x) => (float[2] y) {
          y = If (c) <then_branch = t () => (float[2] a) { a = Relu(x) },
                      else_branch = e () => (float[2] b) { b = Neg(x) }> }"""
    )
    with pytest.raises(MissingValueError) as asked:
        bound(model)
    assert asked.value.names == {"c"}
    assert [node.op for node in bound(model, values={"c": np.array(False)}).nodes] == ["Neg", "Identity"]


def test_operators_that_no_body_could_run_are_named_before_anything_runs() -> None:
    """An error in the hundredth step of a loop would come late."""
    model = parse(
        """g (float[2] x) => (float[2] y) {
          m = ReduceMax <keepdims = 0> (x) c = Cast <to = 9> (m)
          y = If (c) <then_branch = t () => (float[2] a) { a = RandomNormalLike(x) },
                      else_branch = e () => (float[2] b) { b = Neg(x) }> }"""
    )
    with pytest.raises(GraphError, match=r"RandomNormalLike \(at 'a'\)"):
        first_part(model, supported={"ReduceMax", "Cast", "Neg"})


@pytest.mark.parametrize(("known", "op"), [(1, "Relu"), (0, "Neg")])
def test_a_branch_whose_condition_is_known_is_taken(known: int, op: str) -> None:
    """Exporters write `if rank == 3` into the graph."""
    model = parse(
        f"""g (float[2] x) => (float[2] y) {{
          k = Constant <value = int64 {{{known}}}> () c = Cast <to = 9> (k)
          z = Abs(x)
          y = If (c) <then_branch = t () => (float[2] a) {{ a = Relu(z) }},
                      else_branch = e () => (float[2] a) {{ a = Neg(z) }}> }}"""
    )
    assert [node.op for node in bound(model).nodes] == ["Abs", op, "Identity"]


def test_an_operator_without_a_kernel_becomes_its_function() -> None:
    """ONNX defines most newer operators by older ones."""
    model = parse("g (float[2,3] x) => (float[2,3] y) { y = Softsign(x) }", opset=18)
    graph = bound(model, supported=EVERY_OPERATOR - {"Softsign"})
    assert [node.op for node in graph.nodes] == ["Abs", "Add", "Div", "Identity"]


def test_functions_of_the_model_are_walked_in_place() -> None:
    """torch's exporter writes modules as functions, with attributes handed down."""
    model = parse(
        "g (float[2,3] x) => (float[2,3] y) { a = local.f <k = 0> (x) y = local.f <k = 1> (a) }",
        functions="""<opset_import: ["": 17], domain: "local"> f <k> (a) => (b)
        { t = Softmax <axis: int = @k> (a) b = Relu(t) }""",
    )
    graph = bound(model)
    assert [n.attributes["axis"] for n in graph.nodes if n.op == "Softmax"] == [0, 1]


def test_functions_that_call_themselves_are_refused() -> None:
    """A hostile file may recurse without end."""
    model = parse(
        "g (float[2] x) => (float[2] y) { y = local.f(x) }",
        functions='<opset_import: ["": 17, "local": 1], domain: "local"> f (a) => (b) { b = local.f(a) }',
    )
    with pytest.raises(GraphError, match=r"recursive|deep"):
        bound(model)


def test_functions_that_multiply_are_refused() -> None:
    """Forty functions that each call the next one twice are 2^40 nodes."""
    calls = "".join(
        f'<opset_import: ["": 17, "local": 1], domain: "local"> f{i} (a) => (b) '
        f"{{ t = local.f{i + 1}(a) b = local.f{i + 1}(t) }}"
        for i in range(40)
    )
    last = '<opset_import: ["": 17], domain: "local"> f40 (a) => (b) { b = Relu(a) }'
    model = parse("g (float[2] x) => (float[2] y) { y = local.f0(x) }", functions=calls + last)
    with pytest.raises(GraphError, match="expands to more than"):
        bound(model)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "g (float[2,3] x, float[4,5] w) => (float[a,b] y) { y = MatMul(x, w) }",
            r"'y' \(MatMul\) does not fit",
        ),
        (
            "g (float[2] x, int64[2] w) => (float[2] y) { y = Add(x, w) }",
            r"'w' is int64\[2\], but 'x' is float32",
        ),
        ("g (bool[2] x) => (bool[2] y) { y = Relu(x) }", r"input 'x' is bool\[2\], which Relu does not take"),
        ("g (float[2] x) => (float[2] y) { y = Softmax <axis = 7> (x) }", r"axis 7 is none of 'x'"),
        (
            "g (float[2] x, int64[2,1] i) => (float[2] y) { y = GatherND <batch_dims = 2> (x, i) }",
            "batch_dims is 2",
        ),
    ],
)
def test_what_does_not_fit_names_node_and_tensor(text: str, said: str) -> None:
    """Ill-typed graphs come from hand-made exporters; the message has to say where."""
    with pytest.raises(GraphError, match=said):
        bound(parse(text))


def test_a_shape_of_terabytes_is_refused_before_memory_is_asked_for() -> None:
    """Eight numbers in a file can ask for any amount of memory."""
    model = parse(
        f"""g (float[1] x) => (float[a,b] y) {{
          s = Constant <value = int64[2] {{{1 << 31}, {1 << 31}}}> () y = Expand(x, s) }}"""
    )
    with pytest.raises(GraphError, match=r"tensor 'y' would be float32\[2147483648,2147483648\]"):
        bound(model)


def test_large_results_are_computed_when_they_are_needed() -> None:
    """A constant that is broadcast to 100 MB stays a node: one number would become 100 MB."""
    model = parse(
        """g (float[1] x) => (float[a,b] y) {
          s = Constant <value = int64[2] {5000, 5000}> () o = Constant <value = float[1] {1}> ()
          e = Expand(o, s) y = Add(x, e) }"""
    )
    assert [node.op for node in bound(model).nodes] == ["Expand", "Add"]


def test_dequantized_weights_stay_quantized() -> None:
    """Folding them would take four times the memory that the model's maker saved."""
    weight = np.ones((1024, 2048), np.int8)
    graph = helper.make_graph(
        [
            helper.make_node("DequantizeLinear", ["W", "scale"], ["w"]),
            helper.make_node("MatMul", ["x", "w"], ["y"]),
        ],
        "g",
        [helper.make_tensor_value_info("x", 1, [1, 1024])],
        [helper.make_tensor_value_info("y", 1, [1, 2048])],
        [numpy_helper.from_array(weight, "W"), numpy_helper.from_array(np.float32(0.5), "scale")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    assert [node.op for node in bound(model).nodes] == ["DequantizeLinear", "MatMul"]


OLD = [
    (11, "y = Squeeze <axes = [1]> (x)", "y = Squeeze (x, y.axes#"),
    (11, "y = ReduceSum <axes = [1], keepdims = 0> (x)", "y = ReduceSum <keepdims=0> (x, y.axes#"),
    (13, "y = ReduceMax <axes = [1]> (x)", "y = ReduceMax (x, y.axes#"),
    (11, "y, z = Split <axis = 2, split = [1, 3]> (x)", "y, z = Split <axis=2> (x, y.split#"),
    (13, "y, z = Split <axis = 2> (x)", "y, z = Split <axis=2, num_outputs=2> (x)"),
    (11, "y = Softmax <axis = -1> (x)", "y = Softmax <axis=-1> (x)"),
    (9, "y = Clip <min = 0.0> (x)", "y = Clip (x, y.min#"),
    (9, "y = Slice <starts = [1], ends = [2], axes = [2]> (x)", "y = Slice (x, y.starts#"),
    (9, "y, z = TopK <k = 2, axis = 2> (x)", "y, z = TopK <axis=2> (x, y.k#"),
    (10, "y = Dropout <ratio = 0.3> (x)", "y = Identity (x)"),
]


@pytest.mark.parametrize(("opset", "old", "new"), OLD, ids=[f"{opset} {old}" for opset, old, _ in OLD])
def test_older_operators_are_said_in_the_newest_words(opset: int, old: str, new: str) -> None:
    """Kernels know one meaning of each operator."""
    graph = bound(parse(f"g (float[2,1,4] x) => (float y) {{ {old} }}", opset))
    assert str(graph.nodes[-1]).startswith(new)


def test_an_old_softmax_over_several_axes_is_one_over_a_flat_one() -> None:
    """Before opset 13, everything from `axis` on was one axis."""
    graph = bound(parse("g (float[2,3,4] x) => (float[2,3,4] y) { y = Softmax(x) }", 11))
    assert [node.op for node in graph.nodes] == ["Reshape", "Softmax", "Reshape"]
    assert graph.types[graph.nodes[1].outputs[0]].shape == (2, 12)


def test_sequences_are_left_to_the_host() -> None:
    """torch's newer exporter cuts a recurrent layer into a sequence; kernels see its tensors only."""
    model = parse(
        """g (float[4,3] x) => (float[3] y) {
          s = SplitToSequence <axis = 0, keepdims = 0> (x)
          i = Constant <value = int64 {1}> () a = SequenceAt (s, i) y = Relu (a) }"""
    )
    part = first_part(model)
    hosts = [(placed.node.op_type, placed.host) for placed in part.waiting]
    assert hosts == [("SplitToSequence", True), ("SequenceAt", True), ("Relu", False)]


def test_a_resized_length_is_a_product_in_float32() -> None:
    """As in onnxruntime; in float64, 40 times float32(0.35) lies below 14."""
    text = """g (float[40,2] x) => (float y) {
      none = Constant <value = float[0] {}> () s = Constant <value = float[2] {0.35, 1.5}> ()
      y = Resize <mode = "linear"> (x, none, s) }"""
    assert bound(parse(text)).types["y"].shape == (14, 3)


@pytest.mark.parametrize("opset", [7, 9, 10])
def test_a_resized_length_of_an_older_model_is_a_product_in_float32(opset: int) -> None:
    """As in onnxruntime; in float64, 10 times float32(1.3) lies below 13."""
    nodes = {
        7: "y = Upsample <scales = [1.0, 1.3]> (x)",
        9: "s = Constant <value = float[2] {1.0, 1.3}> () y = Upsample (x, s)",
        10: "s = Constant <value = float[2] {1.0, 1.3}> () y = Resize (x, s)",
    }
    graph = bound(parse(f"g (float[2,10] x) => (float y) {{ {nodes[opset]} }}", opset))
    assert graph.types["y"].shape == (2, 13)
