"""Write LLVM IR as text: typed values, loops and branches.

    module = Module(isa)
    with module.kernel("scale") as f:
        args, lo, hi, scratch = f.params
        x, n = f.fields(args, ScaleArgs, "x", "n")
        with f.each(lo, hi) as row, f.each(0, n, isa.lanes) as i:
            p = f.at(x, row * n + i)
            f.store(f.load(p, f.vec) * 2.0, p)
    text = module.text()

`f.vec` is the ISA's vector of floats. Python numbers turn into constants of the type beside them.
Integers are signed in comparisons and divisions. No operation reassociates; only `fma` contracts.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from pliant.kernels.emit.function import CountedLoop, Function, RepeatLoop
from pliant.kernels.emit.isa import Isa
from pliant.kernels.emit.values import ConstantNumber, literal

__all__ = ["CountedLoop", "Function", "Module", "RepeatLoop"]

_KERNEL_PARAMS = (("args", "ptr"), ("lo", "i64"), ("hi", "i64"), ("scratch", "ptr"))


class Module:
    """One unit of compilation: functions, constant tables, and the declarations that they need."""

    def __init__(self, isa: Isa) -> None:
        self.isa = isa
        self._functions: dict[str, list[str]] = {}
        self._tables: dict[str, str] = {}
        self._declared: dict[str, str] = {}

    @contextmanager
    def kernel(self, name: str) -> Iterator[Function]:
        """An exported `void name(ptr args, i64 lo, i64 hi, ptr scratch)`, the ABI of every kernel."""
        with self.function(name, _KERNEL_PARAMS) as f:
            yield f
            f.ret()

    @contextmanager
    def function(
        self,
        name: str,
        params: Sequence[tuple[str, str]],
        returns: str = "void",
        *,
        attributes: str = "",
        is_exported: bool = True,
    ) -> Iterator[Function]:
        """A function of (name, type) `params`; the body must end in `ret`. Attributes: `alwaysinline`, ..."""
        f = Function(self, params)
        linkage = "" if is_exported else "internal "
        signature = ", ".join(f"{type_} %{p}" for p, type_ in params)
        yield f
        head = f"define {linkage}{returns} @{name}({signature}) nounwind {attributes} #0 {{"
        self._functions[name] = [head, "entry:", *f.lines, "}"]

    def add(self, functions: Mapping[str, str]) -> None:
        """Add functions by name, whose definitions or declarations are given as LLVM assembly."""
        self._functions |= {name: text.splitlines() for name, text in functions.items()}

    def text(self) -> str:
        """The module as LLVM assembly."""
        declared = [line for name, line in self._declared.items() if name not in self._functions]
        bodies = ["\n".join(lines) for lines in self._functions.values()]
        return "\n".join([*self._tables.values(), *declared, *bodies, self._attributes(), ""])

    def table(self, values: Sequence[ConstantNumber], type_: str, align: int = 64) -> str:
        """The name of a constant array in read-only memory; equal arrays are merged."""
        body = ", ".join(f"{type_} {literal(v, type_)}" for v in values)
        text = f"private unnamed_addr constant [{len(values)} x {type_}] [{body}], align {align}"
        for name, line in self._tables.items():
            if line.endswith(text):
                return name
        name = f"@table{len(self._tables)}"
        self._tables[name] = f"{name} = {text}"
        return name

    def declare(self, name: str, returns: str, types: Sequence[str]) -> None:
        """Declare that `name` is defined elsewhere: an intrinsic, a libc function, or a function defined
        later.
        """
        self._declared.setdefault(name, f"declare {returns} @{name}({', '.join(types)})")

    def _attributes(self) -> str:
        if self.isa.name != "avx512" or self.isa.is_portable:
            return "attributes #0 = { nounwind }"
        return 'attributes #0 = { nounwind "prefer-vector-width"="512" "min-legal-vector-width"="512" }'
