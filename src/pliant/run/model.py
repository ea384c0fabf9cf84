"""A session on an ONNX model: feeds of any shape in, arrays out. Knows no operator and no file format.

What is compiled has numbers for all dimensions; a model with symbolic ones is compiled anew for each
combination of shapes it meets, and for each value of the inputs from which shapes follow.
"""

import threading
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, final, get_args, overload

import numpy as np
import psutil

from pliant.compile.call import Target
from pliant.compile.encode import encode, kernels
from pliant.compile.image import Image, make_image
from pliant.compile.load import addresses
from pliant.compile.lower.rules import RULES
from pliant.errors import GraphError, InputError, ValueNeeded
from pliant.ir.graph import Graph, TensorType
from pliant.kernels.jit import Library
from pliant.kernels.pool import Pool
from pliant.models.onnx_bind import bind
from pliant.models.onnx_file import OnnxModel, Port
from pliant.run.compiled import CompiledSession
from pliant.run.schedule import Planner, ScheduleKind, ScheduleReport
from pliant.run.weights import SharedWeights

if TYPE_CHECKING:
    from pliant.run.profile import Profile

Feeds = Mapping[str, np.ndarray]
_Key = tuple[tuple[tuple[int, ...], ...], tuple[bytes, ...]]


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """`dims` fixes symbolic dimensions; `without` names passes to leave out; at most `images` are kept.

    `schedule` says who chooses layouts and loops (run/schedule.py).
    """

    dims: Mapping[str, int]
    without: Collection[str] = ()
    images: int = 8
    schedule: ScheduleKind = "static"

    def __post_init__(self) -> None:
        if self.images < 1:
            raise InputError(f"at least one image has to be kept, not {self.images}.")
        if self.schedule not in get_args(ScheduleKind):
            raise InputError(
                f"no schedule is called {self.schedule!r}; give one of {get_args(ScheduleKind)}."
            )


@final
class ModelSession:
    """Answers feeds with a model's outputs; threads may share it, and take turns.

    The pool may be shared with other sessions and is left open. A model whose shapes are all known is
    compiled at once unless `ahead` is off, others when a shape is first met; the least recently used image
    goes when there are more than `options.images`. Weights are held once for all of them. `schedule` tells
    how the last graph was scheduled, unless that went by rule.
    """

    def __init__(
        self, model: OnnxModel, pool: Pool, library: Library, options: ModelOptions, *, ahead: bool = True
    ) -> None:
        self._model = model
        self._pool = pool
        self._library = library
        self._options = options
        self._lock = threading.Lock()
        self._weights = SharedWeights(model.drop_pages)
        self._by_value: tuple[str, ...] = ()
        self._planner = Planner(options.schedule, pool, library)
        self.schedule: ScheduleReport | None = None
        self._images: OrderedDict[_Key, CompiledSession] = OrderedDict()
        self._closed = False
        _check_dims(model, options.dims)
        self.inputs = tuple(_fixed(port, options.dims) for port in model.inputs)
        self.outputs = tuple(_fixed(port, options.dims) for port in model.outputs)
        if ahead and all(port.is_static for port in self.inputs):
            self._compile_ahead()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @overload
    def run(self, feeds: Feeds, out: Feeds | None = None) -> dict[str, np.ndarray]: ...

    @overload
    def run(self, feeds: Sequence[str] | None, out: Feeds) -> list[np.ndarray]: ...

    def run(
        self, feeds: Feeds | Sequence[str] | None, out: Feeds | None = None
    ) -> dict[str, np.ndarray] | list[np.ndarray]:
        """Outputs by name, for feeds by name; those of `out` are written into the arrays given there.

        As onnxruntime's users write it, `run(names or None, feeds)` gives a list. Raises InputError
        naming a feed that is missing, unknown, or of the wrong type or shape; GraphError when the model
        cannot be compiled for these shapes.
        """
        if isinstance(feeds, Mapping):
            return self._run(feeds, out)
        if not isinstance(out, Mapping):
            raise InputError(
                "run takes feeds by name: run({name: array}), or run([output, ...], {name: array})."
            )
        names = [port.name for port in self.outputs] if feeds is None else list(feeds)
        self._known_outputs(names)
        results = self._run(out, None)
        return [results[name] for name in names]

    def profile(self, feeds: Feeds, runs: int = 20) -> "Profile":
        """Where the time of a run goes, step by step, over `runs` runs after one that is not counted."""
        shapes = self._shapes(feeds)
        with self._lock:
            session = self._session(shapes, feeds)
            return session.profile({x: feeds[x] for x in session.program.inputs}, runs)

    def graph(self, feeds: Feeds) -> Graph:
        """What would be compiled for these feeds, after all passes."""
        return self._bound(self._shapes(feeds), feeds)

    def image(self, feeds: Feeds) -> Image:
        """The calls and places that feeds of these shapes run."""
        return make_image(self.graph(feeds), Target(self._library.isa, self._pool.n_threads))

    def close(self) -> None:
        """Let go of all memory; running afterwards is an error. The pool stays open."""
        with self._lock:
            self._closed = True
            self._images.clear()
            self._weights = SharedWeights()

    def _run(self, feeds: Feeds, out: Feeds | None) -> dict[str, np.ndarray]:
        shapes = self._shapes(feeds)
        if out is not None:
            self._known_outputs(out)
        with self._lock:
            session = self._session(shapes, feeds)
            return session.run({x: feeds[x] for x in session.program.inputs}, out)

    def _session(self, shapes: Mapping[str, tuple[int, ...]], feeds: Feeds) -> CompiledSession:
        """The image for these shapes, compiled now if they are new; raises InputError once closed."""
        if self._closed:
            raise InputError("this session is closed; compile the model again.")
        session = self._images.get(self._key(shapes, feeds)) or self._compile(shapes, feeds)
        self._images.move_to_end(self._key(shapes, feeds))
        return session

    def _key(self, shapes: Mapping[str, tuple[int, ...]], feeds: Feeds) -> _Key:
        return tuple(shapes.values()), tuple(feeds[x].tobytes() for x in self._by_value)

    def _compile(self, shapes: Mapping[str, tuple[int, ...]], feeds: Feeds) -> CompiledSession:
        graph = self._bound(shapes, feeds)
        image = make_image(graph, Target(self._library.isa, self._pool.n_threads))
        _check_memory(image, self._model.source)
        at = addresses(kernels(image), self._library)
        weights = self._weights.of(image, graph.constants)
        session = CompiledSession(encode(image), weights, at, self._pool)
        self._images[self._key(shapes, feeds)] = session
        while len(self._images) > self._options.images:
            self._images.popitem(last=False)
        return session

    def _bound(self, shapes: Mapping[str, tuple[int, ...]], feeds: Feeds) -> Graph:
        """The graph for these shapes; inputs that shapes follow from are found on the way."""
        memory = psutil.virtual_memory().total
        while True:
            values = {x: np.array(feeds[x]) for x in self._by_value if x in feeds}
            try:
                bound = bind(self._model, {}, values, supported=RULES, shapes=shapes, max_bytes=memory)
            except ValueNeeded as needed:
                if needed.names <= set(self._by_value) or not needed.names <= set(feeds):
                    raise
                self._by_value = tuple(sorted({*self._by_value, *needed.names}))
                continue
            planned = self._planner.plan(bound, self._options.without)
            self.schedule = planned.report
            return planned.graph

    def _compile_ahead(self) -> None:
        shapes = {port.name: tuple(d for d in port.dims or () if isinstance(d, int)) for port in self.inputs}
        with suppress(ValueNeeded):  # known when it is fed
            self._compile(shapes, {})

    def _shapes(self, feeds: Feeds) -> dict[str, tuple[int, ...]]:
        """Every input's shape. Raises InputError for feeds the model does not take."""
        names = {port.name for port in self.inputs}
        if feeds.keys() != names:
            wrong = [f"{x!r} is missing" for x in sorted(names - feeds.keys())]
            wrong += [f"there is no input {x!r}" for x in sorted(feeds.keys() - names)]
            inputs = ", ".join(f"{port.name}: {port}" for port in self.inputs)
            raise InputError(f"the feeds do not fit: {'; '.join(wrong)}. The inputs are {inputs}.")
        sizes: dict[str, tuple[int, str]] = {}
        return {port.name: _shape(port, feeds[port.name], sizes) for port in self.inputs}

    def _known_outputs(self, names: Collection[str]) -> None:
        known = [port.name for port in self.outputs]
        unknown = [x for x in names if x not in known]
        if unknown:
            raise InputError(f"there are no outputs {unknown}; the outputs are {known}.")


def _shape(port: Port, array: Any, sizes: dict[str, tuple[int, str]]) -> tuple[int, ...]:
    """A feed's shape; `sizes` collects what each symbol was bound to, and by which input."""
    if not isinstance(array, np.ndarray | np.generic):
        raise InputError(f"input {port.name!r} must be a numpy array, not {type(array).__name__}.")
    given = f"{array.dtype}[{','.join(map(str, array.shape))}]"
    if array.dtype != TensorType(port.dtype, ()).numpy:
        raise InputError(f"input {port.name!r} is {given}, but must be {port}.")
    if port.dims is None:
        return tuple(array.shape)
    if len(array.shape) != len(port.dims):
        raise InputError(f"input {port.name!r} is {given}, but must be {port}.")
    for axis, (dim, size) in enumerate(zip(port.dims, array.shape, strict=True)):
        if isinstance(dim, int) and dim != size:
            raise InputError(f"input {port.name!r} is {given}, but must be {port} (axis {axis} is {size}).")
        if isinstance(dim, str):
            bound, by = sizes.setdefault(dim, (size, port.name))
            if bound != size:
                raise InputError(
                    f"dimension {dim!r} is {bound} in input {by!r}, but {size} in {port.name!r} ({given})."
                )
    return tuple(array.shape)


def _fixed(port: Port, dims: Mapping[str, int]) -> Port:
    """The port with the dimensions of `dims` as numbers."""
    if port.dims is None:
        return port
    named = [d if d is not None else f"{port.name}.{i}" for i, d in enumerate(port.dims)]
    fixed = tuple(
        dims.get(name, d) if isinstance(name, str) else d for name, d in zip(named, port.dims, strict=True)
    )
    return Port(port.name, port.dtype, fixed)


def _check_dims(model: OnnxModel, dims: Mapping[str, int]) -> None:
    known = set(model.symbols)
    known |= {f"{p.name}.{i}" for p in model.inputs for i, d in enumerate(p.dims or ()) if d is None}
    for name, size in dims.items():
        if name not in known:
            raise InputError(f"the model has no dimension {name!r}; it has {sorted(known)}.")
        if isinstance(size, bool) or not isinstance(size, int) or size < 0:
            raise InputError(f"dimension {name!r} is {size!r}; it must be a whole number, 0 or more.")


def _check_memory(image: Image, source: str) -> None:
    """Raises GraphError rather than ask the system for more than the machine has."""
    outputs = sum(t.n_bytes for t in image.outputs.values())
    wanted = image.arena_bytes + outputs + sum(p.n_bytes for p in image.packed.values())
    there = psutil.virtual_memory().total
    if wanted > there:
        raise GraphError(
            f"{source} needs {wanted / 1e9:.1f} GB for its tensors at these shapes; this machine has "
            f"{there / 1e9:.1f} GB. Feed smaller shapes."
        )
