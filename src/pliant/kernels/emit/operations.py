"""The operations of element-wise expressions as IR.

Every operation is defined for all operands: dividing an integer by zero gives 0, a shift may be by any
amount.
"""

from collections.abc import Callable, Mapping, Sequence
from math import inf

from pliant.kernels.emit import elementary, vmath
from pliant.kernels.emit.builder import Function
from pliant.kernels.emit.dtypes import Dtype, convert
from pliant.kernels.emit.expression import CONSTANT, INPUT, Expr
from pliant.kernels.emit.small_floats import to_power
from pliant.kernels.emit.values import Value, like

OperationWriter = Callable[[Function, Dtype, Sequence[Value]], Value]
"""Operands in registers of one dtype, the last operand's; result in the register of the node's dtype."""


def evaluate(f: Function, tree: Expr, leaves: Mapping[int, Value], lanes: int) -> Value:
    """The tree's value, given its inputs in registers of `lanes` lanes (0: scalars)."""
    done: dict[Expr, Value] = {}

    def visit(node: Expr) -> Value:
        if node.op == INPUT:
            return leaves[int(node.value)]
        if node not in done:
            done[node] = _node(f, node, [visit(a) for a in node.args], lanes)
        return done[node]

    return visit(tree)


def _node(f: Function, node: Expr, args: Sequence[Value], lanes: int) -> Value:
    if node.op == CONSTANT:
        type_ = node.row.register
        return f.const(node.value, f"<{lanes} x {type_}>" if lanes else type_)
    if node.op == "cast":
        return convert(f, args[0], node.args[0].row, node.row)
    return OPERATIONS[node.op](f, node.args[-1].row, args)


def _float_or_integer(for_floats: str, for_integers: str) -> OperationWriter:
    def emit(f: Function, row: Dtype, args: Sequence[Value]) -> Value:
        a, b = args
        name = for_floats if row.kind == "float" else for_integers
        return f.op(f"{name} {a}, {b.text}", a.type)

    return emit


def _compare(how: str) -> OperationWriter:
    def emit(f: Function, row: Dtype, args: Sequence[Value]) -> Value:
        a, b = args
        if row.kind in ("uint", "bool") and how != "eq":
            return f.op(f"icmp u{how} {a}, {b.text}", like(a.type, "i1"))
        return a.compare(how, b)

    return emit


def _bits(name: str) -> OperationWriter:
    return lambda f, row, args: f.op(f"{name} {args[0]}, {args[1].text}", args[0].type)


def _unary(function: elementary.Unary) -> OperationWriter:
    return lambda f, row, args: function(f, args[0])


def _divide(f: Function, row: Dtype, args: Sequence[Value]) -> Value:
    """Division; toward zero for integers."""
    return args[0] / args[1] if row.kind == "float" else _guard_division(f, row, args, "div")


def _guard_division(f: Function, row: Dtype, args: Sequence[Value], what: str) -> Value:
    """Integer division or remainder; 0 if the divisor is 0; the lowest integer divided by -1 wraps."""
    a, b = args
    one, zero = f.const(1, b.type), f.const(0, b.type)
    is_zero = b.compare("eq", 0)
    if row.kind != "int":
        y = f.op(f"u{what} {a}, {f.select(is_zero, one, b).text}", a.type)
        return f.select(is_zero, zero, y)
    is_minus = b.compare("eq", -1)
    y = f.op(f"s{what} {a}, {f.select(is_zero | is_minus, one, b).text}", a.type)
    return f.select(is_zero, zero, f.select(is_minus, -a if what == "div" else zero, y))


def _remainder(f: Function, row: Dtype, args: Sequence[Value]) -> Value:
    """The remainder with the sign of the dividend."""
    if row.kind == "float":
        return elementary.remainder(f, *args)
    return _guard_division(f, row, args, "rem")


def _modulo(f: Function, row: Dtype, args: Sequence[Value]) -> Value:
    """The remainder with the sign of the divisor."""
    rest = _remainder(f, row, args)
    if row.kind == "uint":
        return rest
    b = args[1]
    zero = f.const(0, b.type)
    is_apart = (rest < zero) ^ (b < zero)
    return f.select(is_apart & rest.compare("ne", 0) & b.compare("ne", 0), rest + b, rest)


def _shift(how: str) -> OperationWriter:
    """A shift by any amount: a too large or negative one leaves only copies of the sign bit, or 0."""

    def emit(f: Function, row: Dtype, args: Sequence[Value]) -> Value:
        a, n = args
        name = "ashr" if how == "shr" and row.kind == "int" else "lshr" if how == "shr" else "shl"
        is_within = f.op(f"icmp ult {n}, {f.const(row.bits, n.type).text}", like(n.type, "i1"))
        most = f.const(row.bits - 1, n.type)
        shifted = f.op(f"{name} {a}, {f.select(is_within, n, most).text}", a.type)
        return shifted if name == "ashr" else f.select(is_within, shifted, f.const(0, a.type))

    return emit


def _extreme(how: str) -> OperationWriter:
    """The larger or smaller of two; NaN if either is NaN."""

    def emit(f: Function, row: Dtype, args: Sequence[Value]) -> Value:
        a, b = args
        takes_a = _compare(how)(f, row, args)
        if row.kind == "float":
            takes_a = takes_a | a.compare("uno", a)
        return f.select(takes_a, a, b)

    return emit


def _absolute(f: Function, row: Dtype, args: Sequence[Value]) -> Value:
    (x,) = args
    if row.kind == "float":
        return vmath.magnitude(f, x)
    return f.select(x < 0, -x, x) if row.kind == "int" else x


def _sign(f: Function, row: Dtype, args: Sequence[Value]) -> Value:
    (x,) = args
    one, zero = f.const(1, x.type), f.const(0, x.type)
    if row.kind == "uint":
        return f.select(x.compare("ne", 0), one, zero)
    return f.select(x > zero, one, f.select(x < zero, -one, x))


def _not(f: Function, row: Dtype, args: Sequence[Value]) -> Value:
    return args[0] ^ (1 if row.kind == "bool" else -1)


def _power(f: Function, row: Dtype, args: Sequence[Value]) -> Value:
    if row.kind == "float":
        return elementary.power(f, *args)
    return _integer_power(f, row, *args)


def _integer_power(f: Function, row: Dtype, base: Value, exponent: Value) -> Value:
    """Integer power by squaring; a negative exponent gives 0, except for bases 1 and -1."""
    one, zero = f.const(1, base.type), f.const(0, base.type)
    is_negative = exponent < 0 if row.kind == "int" else exponent.compare("ne", exponent)
    is_odd = (exponent & 1).compare("ne", 0)
    unit = f.select(base.compare("eq", 1), one, zero)
    unit = f.select(base.compare("eq", -1), f.select(is_odd, base, one), unit)
    with f.repeat([one, base, f.select(is_negative, zero, exponent)]) as loop:
        result, square, left = loop.carried
        result = f.select((left & 1).compare("ne", 0), result * square, result)
        left = left >> 1
        more = left.compare("ne", 0)
        any_more = f.fold(more, lambda a, b: a | b) if more.type.startswith("<") else more
        loop.repeat_if(any_more, [result, square * square, left])
    return f.select(is_negative, unit, loop.carried[0])


def _where(f: Function, row: Dtype, args: Sequence[Value]) -> Value:
    return f.select(*args)


def _is_infinite(f: Function, row: Dtype, args: Sequence[Value]) -> Value:
    return vmath.magnitude(f, args[0]).compare("eq", inf)


def _is_nan(f: Function, row: Dtype, args: Sequence[Value]) -> Value:
    return args[0].compare("uno", args[0])


def _negate(f: Function, row: Dtype, args: Sequence[Value]) -> Value:
    return -args[0]


def _to_power(how: str, saturates: bool) -> OperationWriter:
    return lambda f, row, args: to_power(f, args[0], how, saturates)


def _sqrt(f: Function, x: Value) -> Value:
    return f.intrinsic("llvm.sqrt", x.type, x)


_FUNCTIONS: Mapping[str, elementary.Unary] = {
    "sqrt": _sqrt,
    "exp": elementary.exp,
    "ln": elementary.ln,
    "log1p": elementary.log1p,
    "expm1": elementary.expm1,
    "erf": elementary.erf,
    "tanh": elementary.tanh,
    "sigmoid": elementary.sigmoid,
    "softplus": elementary.softplus,
    "gelu": elementary.gelu,
    "gelu_tanh": elementary.gelu_tanh,
    "sin": elementary.sin,
    "cos": elementary.cos,
    "tan": elementary.tan,
    "asin": elementary.asin,
    "acos": elementary.acos,
    "atan": elementary.atan,
    "sinh": elementary.sinh,
    "cosh": elementary.cosh,
    "asinh": elementary.asinh,
    "acosh": elementary.acosh,
    "atanh": elementary.atanh,
    "round": elementary.rint,
    "floor": elementary.floor,
    "ceil": elementary.ceil,
}

OPERATIONS: Mapping[str, OperationWriter] = {
    **{name: _unary(function) for name, function in _FUNCTIONS.items()},
    "add": _float_or_integer("fadd", "add"),
    "sub": _float_or_integer("fsub", "sub"),
    "mul": _float_or_integer("fmul", "mul"),
    "div": _divide,
    "mod": _modulo,
    "fmod": _remainder,
    "pow": _power,
    "min": _extreme("lt"),
    "max": _extreme("gt"),
    "neg": _negate,
    "abs": _absolute,
    "sign": _sign,
    **{how: _compare(how) for how in ("eq", "lt", "le", "gt", "ge")},
    **{name: _bits(name) for name in ("and", "or", "xor")},
    "not": _not,
    "shl": _shift("shl"),
    "shr": _shift("shr"),
    "where": _where,
    **{f"power_{how}": _to_power(how, False) for how in ("up", "down", "nearest")},
    **{f"power_{how}_saturated": _to_power(how, True) for how in ("up", "down", "nearest")},
    "isinf": _is_infinite,
    "isnan": _is_nan,
}
"""By the names that expressions use."""
