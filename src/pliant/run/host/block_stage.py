"""Parts of a model with data-dependent shapes: they are bound when their input tensors are known."""

from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, Never, final

import numpy as np

from pliant.arrays import Float64
from pliant.compiler.executable.encode_image import CallEntry
from pliant.compiler.rules.rules import RULES
from pliant.ir.graph import TensorType
from pliant.ir.port import Port
from pliant.kernels.runtime.thread_pool import ThreadPool
from pliant.models.onnx.bind.onnx_bind import bind_next
from pliant.models.onnx.bind.onnx_blocks import BoundPart, NodeBlock, PartRebinder
from pliant.models.onnx.bind.onnx_constants import KnownConstants, SymbolicConstant, constants_at
from pliant.models.onnx.bind.onnx_symbolic import PART_SIZE_LIMITS
from pliant.models.onnx.onnx_tensor import ELEMENT_TYPES
from pliant.run.arena import Arena
from pliant.run.graph.array_stage import AllTensors, Tensors
from pliant.run.graph.graph_runner import GraphRunner
from pliant.run.graph.symbolic_forms import SizedStage, SymbolicForms
from pliant.run.host.host_stage import HostStage, concurrency_error
from pliant.run.session.ports import Feeds, Shapes, copy_into

if TYPE_CHECKING:
    from pliant.run.host.part_binder import PartBinder, PartSteps

REST = "rest"
"""The name of the step that binds the rest of the model when its tensors are known."""

_BEFORE = ""
"""The key, among the shapes of a block, for the sizes of the preceding part, if known values depend on them.
No tensor has this name.
"""

_MOST_MET = 4

Types = Mapping[str, TensorType | None]
"""Types of tensors by name; None for a value that is no tensor: a sequence, an absent value, text."""


@final
class BlockForms:
    """The programs of a block of nodes, cached by the type and shape of each input tensor.

    Sizes that may differ are open, so that other shapes are bound to the same executable unless the compiler
    makes other decisions for them. At first all sizes are open, later those that were seen to differ. `known`
    are values that are constant or depend on the sizes of the preceding part.
    """

    def __init__(self, block: NodeBlock, known: KnownConstants, binder: "PartBinder") -> None:
        made = {y for placed in block.nodes for y in placed.makes}
        reads = block.reads
        wanted = tuple(dict.fromkeys(y for y in block.outputs if y in made))
        self.block, self.bound = block, replace(block, outputs=wanted)
        self.inputs = tuple(sorted(reads - known.keys()))
        self.known = {x: known[x] for x in known.keys() & reads}
        self.passed = {y: block.constants.get(y) for y in block.outputs if y not in made}
        self.is_sized = any(isinstance(a, SymbolicConstant) for a in self.known.values())
        self.forms: OrderedDict[tuple[object, ...], GraphRunner] = OrderedDict()
        self._families: dict[tuple[object, ...], _Families] = {}
        self._steps: list[PartSteps] = []
        self._binder, self._number = binder, binder.next_number()

    def form(self, feeds: AllTensors, sizes: tuple[int, ...]) -> GraphRunner:
        """The program for these tensors, after a part of these sizes."""
        key = (sizes, *map(_kind, feeds.values()))
        form = self.forms.get(key)
        if form is None:
            form = self.forms[key] = self._open({x: type_of(a) for x, a in feeds.items()}, sizes)
            if len(self.forms) > self._binder.n_forms:
                self.forms.popitem(last=False)
        self.forms.move_to_end(key)
        return form

    def _open(self, types: Types, sizes: tuple[int, ...]) -> GraphRunner:
        outputs = dict.fromkeys(self.bound.outputs, _ANY)
        stage = self._sized(types, sizes) if self._binder.is_open else None
        if stage is not None:
            return self._binder.bind_sized(stage, types, outputs, self._steps)
        return self._binder.bind_fixed(self._part(types, sizes), types, outputs, self._steps)

    def _sized(self, types: Types, sizes: tuple[int, ...]) -> SizedStage | None:
        """A stage for these shapes on a form that serves other sizes too; None if there is none."""
        shapes = {x: t.shape for x, t in types.items() if t is not None}
        if self.is_sized:
            shapes[_BEFORE] = sizes
        kinds = tuple(t and (t.dtype, len(t.shape)) for t in types.values())
        families = self._families.setdefault(kinds, _Families())
        stage = families.forms.stage(shapes)
        if stage is None:
            open_dims = _open_dims(shapes, families.met)

            def bind(given: Shapes) -> BoundPart:
                own = {x: t and TensorType(t.dtype, given[x]) for x, t in types.items()}
                return families.part.bind_part(lambda keeps: self._part(own, given.get(_BEFORE, ()), keeps))

            form = self._binder.opener.open_form
            stage = families.forms.open(shapes, open_dims, bind, form, PART_SIZE_LIMITS)
            families.met.append(shapes)
        return stage

    def _part(self, types: Types, sizes: tuple[int, ...], keeps_lookups: bool = False) -> BoundPart:
        return bind_next(
            self._binder.model,
            self.bound,
            constants_at(self.known, sizes),
            types,
            supported=RULES,
            number=self._number,
            max_bytes=self._binder.max_bytes,
            keeps_lookups=keeps_lookups,
        )


@dataclass(slots=True)
class _Families:
    """Forms for tensors of equal types and ranks, and the latest shapes seen."""

    forms: SymbolicForms = field(default_factory=SymbolicForms)
    part: PartRebinder = field(default_factory=PartRebinder)
    met: deque[Shapes] = field(default_factory=lambda: deque(maxlen=_MOST_MET))


@final
class BlockStage:
    """A block of nodes that is bound when it runs, because its input shapes are known only then.

    It follows a part of these `sizes`; programs are shared with blocks after parts of other sizes. Outputs
    that no node makes are passed through.
    """

    arena_bytes = scratch_bytes = 0

    def __init__(self, shared: BlockForms, sizes: tuple[int, ...]) -> None:
        self.shared, self.block = shared, shared.block
        self.inputs, self.outputs = shared.inputs, shared.block.outputs
        self.weights: Feeds = {}
        self._sizes = sizes if shared.is_sized else ()
        known = constants_at(shared.known, self._sizes)
        self.passed = {y: known.get(y, value) for y, value in shared.passed.items()}

    @property
    def rows(self) -> Sequence[CallEntry]:
        """The kernel calls of the latest run."""
        forms = self.shared.forms
        return next(reversed(forms.values())).rows if forms else ()

    def walk(self, tensors: AllTensors, out: Feeds | None) -> Tensors:
        """Its outputs; those of `out` are written into the arrays given there. Raises InputError."""
        made = self._pass_through(tensors, out)
        if self.shared.bound.nodes:
            feeds = {x: tensors[x] for x in self.inputs}
            made |= self.shared.form(feeds, self._sizes).walk(feeds, out)
        return made

    def walk_timed(self, tensors: AllTensors) -> tuple[Tensors, Float64[np.ndarray, " ends"]]:
        """As `walk`, with the time of each kernel call and host step."""
        made = self._pass_through(tensors, None)
        if not self.shared.bound.nodes:
            return made, np.zeros(1)
        feeds = {x: tensors[x] for x in self.inputs}
        results, ends_s = self.shared.form(feeds, self._sizes).walk_timed(feeds)
        return made | results, ends_s

    def copy_for(self, pool: ThreadPool, arena: Arena) -> Never:
        raise concurrency_error(REST)

    def _pass_through(self, tensors: AllTensors, out: Feeds | None) -> Tensors:
        return {y: copy_into(out, y, tensors[y] if a is None else a) for y, a in self.passed.items()}


_ANY = Port("", "", None)


def type_of(value: Any) -> TensorType | None:
    """The type of a tensor; None for a value that kernels do not accept: a sequence, an absent value,
    text.
    """
    if isinstance(value, np.ndarray) and str(value.dtype) in ELEMENT_TYPES:
        return TensorType(str(value.dtype), value.shape)
    return None


def nested_runners(runner: GraphRunner) -> Iterator[GraphRunner]:
    """A program and the programs that its steps have bound so far, possibly with repetitions."""
    yield runner
    for stage in list(runner.stages.values()):
        match stage:
            case BlockStage():
                blocks: Sequence[BlockStage] = [stage]
            case HostStage():
                blocks = stage.bodies
            case _:
                blocks = ()
        for form in chain.from_iterable(list(block.shared.forms.values()) for block in blocks):
            yield from nested_runners(form)


def _kind(value: Any) -> object:
    return (value.dtype, value.shape) if isinstance(value, np.ndarray) else None


def _open_dims(shapes: Shapes, met: Sequence[Shapes]) -> dict[str, tuple[str | None, ...]]:
    """A name for each dimension that may be open: dimensions that ever differed from `met`; those that differ
    by the same amounts share a name.

    At first all dimensions are open, and equal sizes share a name.
    """
    found: dict[str, tuple[str | None, ...]] = {}
    for x, shape in shapes.items():
        ways = [tuple(n - m for n, m in zip(shape, other[x], strict=True)) for other in met]
        by_dim = zip(*ways, strict=True) if met else ((n,) for n in shape)
        found[x] = tuple(str(way) if any(way) else None for way in by_dim)
    return found
