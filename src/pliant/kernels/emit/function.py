"""Write one function's instructions: typed operations, memory, vectors, loops and branches."""

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from pliant.kernels.emit.isa import Isa
from pliant.kernels.emit.values import ConstantNumber, Value, literal, scalar, vector

_FIELD_TYPES: dict[object, str] = {
    ctypes.c_void_p: "ptr",
    ctypes.c_int64: "i64",
    ctypes.c_uint64: "i64",
    ctypes.c_int32: "i32",
    ctypes.c_uint32: "i32",
    ctypes.c_float: "float",
}


@runtime_checkable
class ModuleScope(Protocol):
    """The methods of a module that a function uses."""

    isa: Isa

    def table(self, values: Sequence[ConstantNumber], type_: str, align: int = 64) -> str:
        """The name of a constant array in read-only memory."""
        ...

    def declare(self, name: str, returns: str, types: Sequence[str]) -> None:
        """Declare a function that is defined elsewhere."""
        ...


@dataclass(slots=True)
class CountedLoop:
    """An open counted loop: its index, and the values carried around it.

    Inside the block `carried` are the values of this iteration; after it, those after the last iteration (the
    start values if there was none).
    """

    index: Value
    carried: list[Value]
    _next: list[Value] | None = None

    def carry(self, values: Sequence[Value]) -> None:
        """Pass `values` to the next iteration, in the order of `carried`."""
        self._next = list(values)


@dataclass(slots=True)
class RepeatLoop:
    """An open loop that repeats while `repeat_if` gets a true condition; `carried` are the last iteration's
    values after it.
    """

    carried: list[Value]
    _next: list[Value] = field(default_factory=list)
    _condition: Value | None = None

    def repeat_if(self, condition: Value, values: Sequence[Value] = ()) -> None:
        """Repeat if the i1 `condition` is true, with `values` in the order of `carried`."""
        self._condition, self._next = condition, list(values)


class Function:
    """Writes a function's instructions, one after another, in SSA form."""

    def __init__(self, module: ModuleScope, params: Sequence[tuple[str, str]]) -> None:
        self.module = module
        self.isa = module.isa
        self.lanes = module.isa.lanes
        self.vec = vector(self.lanes, "float")
        self.lines: list[str] = []
        self.params = tuple(Value(f"%{name}", type_, self) for name, type_ in params)
        self._n = 0
        self._block = "entry"
        self._phi_lines: dict[str, int] = {}

    # Writing

    def op(self, text: str, type_: str) -> Value:
        """Write an instruction with a result of `type_`; `text` is everything right of `=`."""
        self._n += 1
        value = Value(f"%v{self._n}", type_, self)
        self.lines.append(f"  {value.text} = {text}")
        return value

    def emit(self, text: str) -> None:
        """Write an instruction without a result."""
        self.lines.append("  " + text)

    def ret(self, value: Value | None = None) -> None:
        self.emit(f"ret {value}" if value is not None else "ret void")

    def const(self, number: ConstantNumber, type_: str = "i64") -> Value:
        """A constant; of a vector type, one in every lane."""
        return Value(literal(number, type_), type_, self)

    def value(self, x: "Value | ConstantNumber", type_: str = "i64") -> Value:
        return x if isinstance(x, Value) else self.const(x, type_)

    def const_lanes(self, numbers: Sequence[ConstantNumber], type_: str) -> Value:
        """A constant vector with these lanes of element `type_`."""
        body = ", ".join(f"{type_} {literal(n, type_)}" for n in numbers)
        return Value(f"<{body}>", vector(len(numbers), type_), self)

    def table(self, values: Sequence[ConstantNumber], type_: str, align: int = 64) -> Value:
        """A pointer to a constant array in read-only memory."""
        return Value(self.module.table(values, type_, align), "ptr", self)

    # Memory

    def at(self, pointer: Value, index: "Value | int", type_: str = "float") -> Value:
        """The address of element `index` (i64) of an array of `type_` at `pointer`."""
        return self.op(f"getelementptr inbounds {type_}, {pointer}, {self.value(index)}", "ptr")

    def load(self, pointer: Value, type_: str = "float", align: int | None = None) -> Value:
        """Read a value; aligned to its element unless `align` (bytes) promises more."""
        return self.op(f"load {type_}, {pointer}, align {align or _element_bytes(type_)}", type_)

    def store(self, value: Value, pointer: Value, align: int | None = None) -> None:
        self.emit(f"store {value}, {pointer}, align {align or _element_bytes(value.type)}")

    def pin(self, vectors: Sequence[Value]) -> list[Value]:
        """The vectors, forced into registers at this point; loads and computations do not move across it.

        Without such points LLVM loads far ahead of the use and spills the loaded values.
        """
        if self.isa.is_portable:
            return list(vectors)
        n, register = len(vectors), "=w" if self.isa.name == "neon" else "=v"
        kinds = ", ".join(v.type for v in vectors)
        places = ",".join([*[register] * n, *map(str, range(n))])
        asm = f'asm sideeffect "", "{places},~{{memory}}"({", ".join(map(str, vectors))})'
        if n == 1:
            return [self.op(f"call {kinds} {asm}", kinds)]
        together = self.op(f"call {{{kinds}}} {asm}", f"{{{kinds}}}")
        return [self.op(f"extractvalue {together}, {i}", v.type) for i, v in enumerate(vectors)]

    def barrier(self) -> None:
        """A compiler barrier for memory: loads and stores do not move across this point."""
        self.emit('call void asm sideeffect "", "~{memory}"()')

    def keep_sums(self, sums: Sequence[Value]) -> list[Value]:
        """The sums of a row of a tile, so that LLVM neither loads ahead of the use nor adds products first.

        x86 multiplies with memory operands, so `black_box` is enough there.
        """
        return self.pin(sums) if self.isa.name == "neon" else [self.black_box(x) for x in sums]

    def prefetch(self, pointer: Value, for_write: bool = False, level: int = 1) -> None:
        """Prefetch the cache line at `pointer` into the cache of `level`; any address is allowed."""
        self.module.declare("llvm.prefetch.p0", "void", ("ptr", "i32", "i32", "i32"))
        self.emit(f"call void @llvm.prefetch.p0({pointer}, i32 {int(for_write)}, i32 {4 - level}, i32 1)")

    def fields(self, pointer: Value, layout: type[ctypes.Structure], *names: str) -> list[Value]:
        """The named fields of the ctypes structure at `pointer`."""
        types = {entry[0]: entry[1] for entry in layout._fields_}
        found = []
        for name in names:
            address = self.at(pointer, getattr(layout, name).offset, "i8")
            found.append(self.load(address, _FIELD_TYPES[types[name]]))
        return found

    # Arithmetic

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """a * b + c, rounded once if the ISA has FMA, else twice."""
        if not self.isa.has_fma:
            return a * b + c
        return self.intrinsic("llvm.fma", a.type, a, b, c)

    def select(self, condition: Value, a: Value, b: Value) -> Value:
        return self.op(f"select {condition}, {a}, {b}", a.type)

    def least(self, a: Value, b: "Value | int") -> Value:
        """The smaller of two integers."""
        b = self.value(b, a.type)
        return self.select(a < b, a, b)

    def cast(self, how: str, value: Value, type_: str) -> Value:
        """`bitcast`, `sitofp`, `fptosi`, `zext`, `sext`, `trunc`, `fpext`, `fptrunc`, `ptrtoint`, ..."""
        return self.op(f"{how} {value} to {type_}", type_)

    def call(self, callee: "str | Value", returns: str, *args: Value) -> Value | None:
        """Call a function by name (declared as it is used) or by address."""
        if isinstance(callee, str):
            self.module.declare(callee, returns, [a.type for a in args])
            callee_text = f"@{callee}"
        else:
            callee_text = callee.text
        text = f"call {returns} {callee_text}({', '.join(map(str, args))})"
        if returns == "void":
            self.emit(text)
            return None
        return self.op(text, returns)

    def intrinsic(self, name: str, type_: str, *args: Value, suffix: str | None = None) -> Value:
        """An LLVM intrinsic overloaded on its result: `llvm.fma` of <8 x float> is `llvm.fma.v8f32`.

        `suffix` replaces that ending; "" is for target intrinsics, which have none.
        """
        full = name + (_suffix(type_) if suffix is None else suffix)
        result = self.call(full, type_, *args)
        assert result is not None
        return result

    def black_box(self, value: Value) -> Value:
        """`value`, opaque to LLVM's optimiser: operations before and after are not reordered or merged.

        In portable lowering, where a vector may be wider than a register, a vector is returned unchanged.
        """
        is_vector = value.type.startswith("<")
        if self.isa.is_portable and is_vector:
            return value
        vector_register = {"neon": "w", "avx512": "v"}.get(self.isa.name, "x")  # "x": the first 16
        register = vector_register if is_vector else "r"
        return self.op(f'call {value.type} asm "", "={register},0"({value})', value.type)

    def pause(self) -> None:
        """Emit the CPU's hint for a waiting loop."""
        if self.isa.architecture == "aarch64":
            # `yield` is a no-op on Arm cores with one thread; `isb` takes a while.
            self.call("llvm.aarch64.isb", "void", self.const(15, "i32"))
        else:
            self.call("llvm.x86.sse2.pause", "void")

    # Vectors

    def splat(self, scalar: Value, lanes: int | None = None) -> Value:
        """`scalar` in every lane; as many lanes as the ISA's vectors of floats unless given."""
        n = lanes or self.lanes
        type_ = vector(n, scalar.type)
        first = self.op(f"insertelement {type_} poison, {scalar}, i64 0", type_)
        return self.shuffle(first, None, [0] * n)

    def shuffle(self, a: Value, b: Value | None, lanes: Sequence[int]) -> Value:
        """The numbered lanes of a followed by b; -1 leaves a lane undefined."""
        other = f"{a.type} poison" if b is None else str(b)
        mask = ", ".join("i32 poison" if i < 0 else f"i32 {i}" for i in lanes)
        result = vector(len(lanes), scalar(a.type))
        return self.op(f"shufflevector {a}, {other}, <{len(lanes)} x i32> <{mask}>", result)

    def extract(self, value: Value, lane: "Value | int") -> Value:
        return self.op(f"extractelement {value}, {self.value(lane)}", scalar(value.type))

    def insert(self, value: Value, element: Value, lane: "Value | int") -> Value:
        return self.op(f"insertelement {value}, {element}, {self.value(lane)}", value.type)

    def fold(self, value: Value, combine: Callable[[Value, Value], Value]) -> Value:
        """Combine all lanes to one scalar, halves first: log2(lanes) steps in a fixed order."""
        n = int(value.type[1:].split(" ")[0])
        while n > 1:
            n //= 2
            upper = self.shuffle(value, None, range(n, 2 * n))
            value = combine(self.shuffle(value, None, range(n)), upper)
        return self.extract(value, 0)

    # Control

    @contextmanager
    def loop(
        self, start: "Value | int", stop: "Value | int", step: "Value | int" = 1, carry: Sequence[Value] = ()
    ) -> Iterator[CountedLoop]:
        """A loop from start to below stop with carried values `carry`; end the block with `carry(...)`."""
        first, last = self.value(start), self.value(stop)
        head, body, end = self.label("head"), self.label("body"), self.label("end")
        before = self._block
        self.branch(head)
        self.place(head)
        index = self._phi_slot("i64")
        carried = [self._phi_slot(v.type) for v in carry]
        self.branch_if(index < last, body, end)
        self.place(body)
        loop = CountedLoop(index, list(carried))
        yield loop
        after = loop._next if loop._next is not None else list(carried)
        assert len(after) == len(carried), "a loop hands on as many values as it carries"
        following = index + step
        latch = self._block
        self.branch(head)
        for phi, begin, again in zip([index, *carried], [first, *carry], [following, *after], strict=True):
            self._fill_phi(phi, [(begin, before), (again, latch)])
        self.place(end)
        loop.carried = list(carried)

    @contextmanager
    def each(self, start: "Value | int", stop: "Value | int", step: "Value | int" = 1) -> Iterator[Value]:
        """A loop without carried values; yields its index."""
        with self.loop(start, stop, step) as loop:
            yield loop.index

    @contextmanager
    def repeat(self, carry: Sequence[Value] = ()) -> Iterator[RepeatLoop]:
        """Run the block at least once; repeat it while the condition passed to `repeat_if` is true."""
        head, end = self.label("head"), self.label("end")
        before = self._block
        self.branch(head)
        self.place(head)
        carried = [self._phi_slot(v.type) for v in carry]
        loop = RepeatLoop(list(carried))
        yield loop
        assert loop._condition is not None, "a repeated block says when it goes on"
        latch = self._block
        self.branch_if(loop._condition, head, end)
        for phi, begin, again in zip(carried, carry, loop._next, strict=True):
            self._fill_phi(phi, [(begin, before), (again, latch)])
        self.place(end)
        loop.carried = list(loop._next)

    @contextmanager
    def when(self, condition: Value) -> Iterator[None]:
        """Run the block only if the i1 `condition` is true."""
        then, end = self.label("then"), self.label("end")
        self.branch_if(condition, then, end)
        self.place(then)
        yield
        self.branch(end)
        self.place(end)

    def choose(
        self, condition: Value, then: Callable[[], Sequence[Value]], other: Callable[[], Sequence[Value]]
    ) -> list[Value]:
        """Run one of two branches and return its values, which have equal types in both."""
        labels = self.label("then"), self.label("else")
        end = self.label("end")
        self.branch_if(condition, *labels)
        results: list[tuple[Sequence[Value], str]] = []
        for name, branch in zip(labels, (then, other), strict=True):
            self.place(name)
            values = branch()
            results.append((values, self._block))
            self.branch(end)
        self.place(end)
        (a, block_a), (b, block_b) = results
        return [self.phi([(x, block_a), (y, block_b)]) for x, y in zip(a, b, strict=True)]

    def match(self, value: Value, cases: Mapping[int, Callable[[], None]]) -> None:
        """Run the case of an integer `value`; no case for any other value."""
        end = self.label("end")
        labels = {number: self.label("case") for number in cases}
        arms = " ".join(f"{value.type} {number}, label %{labels[number]}" for number in cases)
        self.emit(f"switch {value}, label %{end} [ {arms} ]")
        for number, case in cases.items():
            self.place(labels[number])
            case()
            self.branch(end)
        self.place(end)

    def label(self, name: str) -> str:
        """A fresh block name, to be placed later."""
        self._n += 1
        return f"{name}{self._n}"

    def place(self, label: str) -> None:
        """Start the block `label`."""
        self.lines.append(f"{label}:")
        self._block = label

    def branch(self, label: str) -> None:
        self.emit(f"br label %{label}")

    def branch_if(self, condition: Value, then: str, other: str) -> None:
        self.emit(f"br {condition}, label %{then}, label %{other}")

    def phi(self, incoming: Sequence[tuple[Value, str]]) -> Value:
        """The value from the predecessor block that was left; must be first in its block."""
        slot = self._phi_slot(incoming[0][0].type)
        self._fill_phi(slot, incoming)
        return slot

    def _phi_slot(self, type_: str) -> Value:
        self._phi_lines[f"%v{self._n + 1}"] = len(self.lines)
        return self.op("phi", type_)

    def _fill_phi(self, phi: Value, incoming: Sequence[tuple[Value, str]]) -> None:
        sources = ", ".join(f"[ {v.text}, %{block} ]" for v, block in incoming)
        self.lines[self._phi_lines[phi.text]] = f"  {phi.text} = phi {phi.type} {sources}"


def _suffix(type_: str) -> str:
    """The suffix of a type in intrinsic names: <8 x float> -> .v8f32."""
    short = {"float": "f32", "half": "f16", "double": "f64", "ptr": "p0"}
    if not type_.startswith("<"):
        return "." + short.get(type_, type_)
    n = type_[1:].split(" ")[0]
    return f".v{n}{short.get(scalar(type_), scalar(type_))}"


def _element_bytes(type_: str) -> int:
    element = scalar(type_)
    known = {"float": 4, "double": 8, "ptr": 8, "half": 2, "i1": 1}
    return known.get(element) or int(element[1:]) // 8
