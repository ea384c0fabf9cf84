"""Typed SSA values, and LLVM's spelling of types and constants."""

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pliant.kernels.emit.function import Function

ConstantNumber = int | float

_SIGNED = {"eq": "eq", "ne": "ne", "lt": "slt", "le": "sle", "gt": "sgt", "ge": "sge"}


def vector(lanes: int, element: str) -> str:
    """LLVM's name of a vector type."""
    return f"<{lanes} x {element}>"


def like(type_: str, element: str) -> str:
    """`element` in as many lanes as `type_` has."""
    if not type_.startswith("<"):
        return element
    return vector(int(type_[1:].split(" ")[0]), element)


def scalar(type_: str) -> str:
    """The element of a vector type; a scalar type itself."""
    return type_[type_.index(" x ") + 3 : -1] if type_.startswith("<") else type_


def is_float(type_: str) -> bool:
    return scalar(type_) in ("float", "double", "half")


def literal(number: ConstantNumber, type_: str) -> str:
    """A constant of `type_`: floats are rounded to float32 and written exactly, vectors are splats."""
    if type_.startswith("<"):
        element = scalar(type_)
        return f"splat ({element} {literal(number, element)})"
    if type_ == "ptr":
        assert number == 0, "the only pointer constant is null"
        return "null"
    if not is_float(type_):
        return str(int(number))
    exact = float(number) if type_ == "double" else struct.unpack("f", struct.pack("f", number))[0]
    return f"0x{struct.unpack('<Q', struct.pack('<d', exact))[0]:016X}"


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """A typed operand. Operators write an instruction into the function the value belongs to."""

    text: str
    type: str
    function: "Function"

    def __str__(self) -> str:
        return f"{self.type} {self.text}"

    def __add__(self, other: "Value | ConstantNumber") -> "Value":
        return self._binary("fadd", "add", other)

    def __sub__(self, other: "Value | ConstantNumber") -> "Value":
        return self._binary("fsub", "sub", other)

    def __mul__(self, other: "Value | ConstantNumber") -> "Value":
        return self._binary("fmul", "mul", other)

    def __floordiv__(self, other: "Value | ConstantNumber") -> "Value":
        """Signed integer division, rounded toward zero."""
        return self._binary(None, "sdiv", other)

    def __mod__(self, other: "Value | ConstantNumber") -> "Value":
        """Signed integer remainder, with the sign of the dividend."""
        return self._binary(None, "srem", other)

    def __truediv__(self, other: "Value | ConstantNumber") -> "Value":
        return self._binary("fdiv", None, other)

    def __and__(self, other: "Value | ConstantNumber") -> "Value":
        return self._binary(None, "and", other)

    def __or__(self, other: "Value | ConstantNumber") -> "Value":
        return self._binary(None, "or", other)

    def __xor__(self, other: "Value | ConstantNumber") -> "Value":
        return self._binary(None, "xor", other)

    def __lshift__(self, other: "Value | ConstantNumber") -> "Value":
        return self._binary(None, "shl", other)

    def __rshift__(self, other: "Value | ConstantNumber") -> "Value":
        """Logical shift: zeros come in from the left."""
        return self._binary(None, "lshr", other)

    def __neg__(self) -> "Value":
        if is_float(self.type):
            return self.function.op(f"fneg {self}", self.type)
        return self.function.const(0, self.type) - self

    def __lt__(self, other: "Value | ConstantNumber") -> "Value":
        return self.compare("lt", other)

    def __le__(self, other: "Value | ConstantNumber") -> "Value":
        return self.compare("le", other)

    def __gt__(self, other: "Value | ConstantNumber") -> "Value":
        return self.compare("gt", other)

    def __ge__(self, other: "Value | ConstantNumber") -> "Value":
        return self.compare("ge", other)

    def compare(self, how: str, other: "Value | ConstantNumber") -> "Value":
        """An i1, or a vector of them: `eq lt le gt ge` (false with a NaN), `ne`, `uno` (either is NaN)."""
        right = self._operand(other)
        result = vector(int(self.type[1:].split(" ")[0]), "i1") if self.type.startswith("<") else "i1"
        if is_float(self.type):
            kind = "une" if how == "ne" else how if how == "uno" else "o" + how
            return self.function.op(f"fcmp {kind} {self}, {right.text}", result)
        return self.function.op(f"icmp {_SIGNED[how]} {self}, {right.text}", result)

    def _operand(self, other: "Value | ConstantNumber") -> "Value":
        right = self.function.value(other, self.type)
        assert right.type == self.type, f"{self.type} beside {right.type}"
        return right

    def _binary(
        self, for_floats: str | None, for_integers: str | None, other: "Value | ConstantNumber"
    ) -> "Value":
        name = for_floats if is_float(self.type) else for_integers
        assert name is not None, f"no such operation on {self.type}"
        return self.function.op(f"{name} {self}, {self._operand(other).text}", self.type)
