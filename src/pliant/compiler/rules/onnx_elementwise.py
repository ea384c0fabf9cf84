"""ONNX's element-wise operators as expressions."""

from collections.abc import Callable, Mapping
from functools import reduce

from pliant.ir.graph import Graph, Node
from pliant.kernels.emit.expression import ConstantValue, Expr, choose, leaf, parse
from pliant.kernels.emit.small_floats import POWERS, SMALL_FLOATS

Args = tuple[Expr, ...]
ElementwiseFormula = Callable[[Node, Args], Expr]
"""Makes the expression of a node from its present inputs, in order."""


def expression(node: Node, graph: Graph) -> tuple[Expr, tuple[str, ...]] | None:
    """The expression of an element-wise node, and the tensors that it reads; None for another operator.

    Every tensor is listed once; the first is the expression's input x0, and so on.
    """
    found = _formula(node, graph)
    if found is None:
        return None
    formula, n_read = found
    present = [x for x in node.inputs[:n_read] if x]
    names = tuple(dict.fromkeys(present))
    known = {x: leaf(i, graph.types[x].dtype) for i, x in enumerate(names)}
    tree = formula(node, tuple(known[x] for x in present))
    return _round_cast(node, tree, graph.types[node.outputs[0]].dtype), names


def _formula(node: Node, graph: Graph) -> tuple[ElementwiseFormula, int | None] | None:
    """A node's formula and the number of inputs that it reads, None for all."""
    if node.op == "CastLike":
        return _cast, 1
    special = _special_power(node, graph) if node.op == "Pow" else None
    if special is not None:
        return lambda _, args: special(args[0]), 1
    formula = FORMULAS.get(node.op)
    return None if formula is None else (formula, None)


def _special_power(node: Node, graph: Graph) -> Callable[[Expr], Expr] | None:
    """A constant power that needs no logarithm."""
    exponent = graph.constants.get(node.inputs[1])
    if exponent is None or exponent.size != 1:
        return None
    number = float(exponent.ravel()[0])
    is_float = leaf(0, graph.types[node.inputs[0]].dtype).row.kind == "float"
    return _POWERS.get(number) or (_FLOAT_POWERS.get(number) if is_float else None)


_POWERS: Mapping[float, Callable[[Expr], Expr]] = {
    1.0: lambda x: x,
    2.0: lambda x: x * x,
    3.0: lambda x: x * x * x,
}
_FLOAT_POWERS: Mapping[float, Callable[[Expr], Expr]] = {
    0.5: lambda x: x.to("sqrt"),
    -1.0: lambda x: x.like(1) / x,
}


def _unary(op: str) -> ElementwiseFormula:
    return lambda node, args: args[0].to(op)


def _binary(op: str) -> ElementwiseFormula:
    return lambda node, args: args[0].with_(op, args[1])


def _comparison(how: str) -> ElementwiseFormula:
    return lambda node, args: args[0].compare(how, args[1])


def _fold(op: str) -> ElementwiseFormula:
    return lambda node, args: reduce(lambda a, b: a.with_(op, b), args)


def _cast(node: Node, args: Args) -> Expr:
    return args[0]  # as for every formula, the result is cast to the output's dtype


def _round_cast(node: Node, x: Expr, dtype: str) -> Expr:
    """A cast: small floats saturate by default; powers of two have their own rounding modes."""
    saturates = node.flag("saturate", True)
    if dtype == POWERS and x.dtype != POWERS:
        how = node.text("round_mode", "up")
        return x.cast("float32").to(f"power_{how}{'_saturated' if saturates else ''}").cast(dtype)
    if dtype in SMALL_FLOATS and saturates and x.row.kind == "float":
        limit = SMALL_FLOATS[dtype].highest
        wide = x.cast("float32") if x.row.bits < 32 else x
        return _clamp(wide, -limit, limit).cast(dtype)
    return x.cast(dtype)


def _mean(node: Node, args: Args) -> Expr:
    return _fold("add")(node, args) / len(args)


def _modulo(node: Node, args: Args) -> Expr:
    return args[0].with_("fmod" if node.flag("fmod") else "mod", args[1])


def _shift(node: Node, args: Args) -> Expr:
    is_left = node.text("direction", "LEFT") == "LEFT"
    return args[0].with_("shl" if is_left else "shr", args[1])


def _power(node: Node, args: Args) -> Expr:
    x, y = args
    if x.row.kind == "float" or y.row.kind == "float":
        is_narrow = all(a.row.kind == "float" and a.row.bits <= 32 for a in args)
        wide = "float32" if is_narrow else "float64"
        return x.cast(wide).with_("pow", y.cast(wide))
    return x.with_("pow", y.cast(x.dtype))


def _clip(node: Node, args: Args) -> Expr:
    x, *bounds = args
    present = [bool(name) for name in (*node.inputs[1:], "", "")[:2]]
    if present[0]:
        low = bounds.pop(0)
        x = choose(x.compare("lt", low), low, x)
    if present[1]:
        high = bounds.pop(0)
        x = choose(x.compare("gt", high), high, x)
    return x


def _where(node: Node, args: Args) -> Expr:
    return choose(args[0], args[1], args[2])


def _positive(x: Expr, otherwise: Expr) -> Expr:
    """x where it is at least 0 (or NaN), else `otherwise`."""
    return choose(x.compare("lt", 0), otherwise, x)


def _relu(node: Node, args: Args) -> Expr:
    return _positive(args[0], args[0].like(0))


def _leaky_relu(node: Node, args: Args) -> Expr:
    return _positive(args[0], args[0] * node.real("alpha", 0.01))


def _prelu(node: Node, args: Args) -> Expr:
    return _positive(args[0], args[0] * args[1])


def _elu(node: Node, args: Args) -> Expr:
    x = args[0]
    return _positive(x, x.to("expm1") * node.real("alpha", 1.0))


def _celu(node: Node, args: Args) -> Expr:
    x, alpha = args[0], node.real("alpha", 1.0)
    return _positive(x, (x / alpha).to("expm1") * alpha)


def _selu(node: Node, args: Args) -> Expr:
    x = args[0]
    alpha = node.real("alpha", 1.6732631921768188)
    gamma = node.real("gamma", 1.0507010221481323)
    return _positive(x, x.to("expm1") * alpha) * gamma


def _hard_sigmoid(node: Node, args: Args) -> Expr:
    alpha, beta = node.real("alpha", 0.2), node.real("beta", 0.5)
    return _clamp(args[0] * alpha + beta, 0, 1)


def _hard_swish(node: Node, args: Args) -> Expr:
    return args[0] * _clamp(args[0] * (1 / 6) + 0.5, 0, 1)


def _clamp(x: Expr, low: ConstantValue, high: ConstantValue) -> Expr:
    x = choose(x.compare("lt", low), x.like(low), x)
    return choose(x.compare("gt", high), x.like(high), x)


def _swish(node: Node, args: Args) -> Expr:
    alpha = node.real("alpha", 1.0)
    return args[0] * (args[0] if alpha == 1.0 else args[0] * alpha).to("sigmoid")


def _mish(node: Node, args: Args) -> Expr:
    return args[0] * args[0].to("softplus").to("tanh")


def _gelu(node: Node, args: Args) -> Expr:
    return args[0].to("gelu_tanh" if node.text("approximate", "none") == "tanh" else "gelu")


def _softsign(node: Node, args: Args) -> Expr:
    return args[0] / (args[0].to("abs") + 1)


def _shrink(node: Node, args: Args) -> Expr:
    x, bias, limit = args[0], node.real("bias", 0.0), node.real("lambd", 0.5)
    if x.row.kind != "float":
        wide = _shrink(node, (x.cast("float64"),))
        return wide.cast(x.dtype)
    inside = choose(x.compare("gt", limit), x - bias, x.like(0))
    return choose(x.compare("lt", -limit), x + bias, inside)


def _thresholded_relu(node: Node, args: Args) -> Expr:
    return choose(args[0].compare("gt", node.real("alpha", 1.0)), args[0], args[0].like(0))


def _reciprocal(node: Node, args: Args) -> Expr:
    return args[0].like(1) / args[0]


def _is_infinite(node: Node, args: Args) -> Expr:
    x = args[0]
    answer = Expr("isinf", "bool", (x,))
    if not node.flag("detect_negative", True):
        answer = answer.with_("and", x.compare("gt", 0))
    if not node.flag("detect_positive", True):
        answer = answer.with_("and", x.compare("lt", 0))
    return answer


def _is_nan(node: Node, args: Args) -> Expr:
    return Expr("isnan", "bool", args)


def _map(node: Node, args: Args) -> Expr:
    return parse(node.text("expression", ""))


FORMULAS: Mapping[str, ElementwiseFormula] = {
    "Abs": _unary("abs"),
    "Acos": _unary("acos"),
    "Acosh": _unary("acosh"),
    "Add": _binary("add"),
    "And": _binary("and"),
    "Asin": _unary("asin"),
    "Asinh": _unary("asinh"),
    "Atan": _unary("atan"),
    "Atanh": _unary("atanh"),
    "BitShift": _shift,
    "BitwiseAnd": _binary("and"),
    "BitwiseNot": _unary("not"),
    "BitwiseOr": _binary("or"),
    "BitwiseXor": _binary("xor"),
    "Cast": _cast,
    "CastLike": _cast,
    "Ceil": _unary("ceil"),
    "Celu": _celu,
    "Clip": _clip,
    "Cos": _unary("cos"),
    "Cosh": _unary("cosh"),
    "Div": _binary("div"),
    "Elu": _elu,
    "Equal": _comparison("eq"),
    "Erf": _unary("erf"),
    "Exp": _unary("exp"),
    "Floor": _unary("floor"),
    "Gelu": _gelu,
    "Greater": _comparison("gt"),
    "GreaterOrEqual": _comparison("ge"),
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _hard_swish,
    "IsInf": _is_infinite,
    "IsNaN": _is_nan,
    "LeakyRelu": _leaky_relu,
    "Less": _comparison("lt"),
    "LessOrEqual": _comparison("le"),
    "Log": _unary("ln"),
    "Map": _map,
    "Max": _fold("max"),
    "Mean": _mean,
    "Min": _fold("min"),
    "Mish": _mish,
    "Mod": _modulo,
    "Mul": _binary("mul"),
    "Neg": _unary("neg"),
    "Not": _unary("not"),
    "Or": _binary("or"),
    "PRelu": _prelu,
    "Pow": _power,
    "Reciprocal": _reciprocal,
    "Relu": _relu,
    "Round": _unary("round"),
    "Selu": _selu,
    "Shrink": _shrink,
    "Sigmoid": _unary("sigmoid"),
    "Sign": _unary("sign"),
    "Sin": _unary("sin"),
    "Sinh": _unary("sinh"),
    "Softplus": _unary("softplus"),
    "Softsign": _softsign,
    "Sqrt": _unary("sqrt"),
    "Sub": _binary("sub"),
    "Sum": _fold("add"),
    "Swish": _swish,
    "Tan": _unary("tan"),
    "Tanh": _unary("tanh"),
    "ThresholdedRelu": _thresholded_relu,
    "Where": _where,
    "Xor": _binary("xor"),
}
"""By ONNX operator name; `Map` is an operator of pliant with an expression over its inputs in the attribute
`expression`.
"""
