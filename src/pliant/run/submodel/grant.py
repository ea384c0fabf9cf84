"""What a session is granted of one bound of memory: preload buffer and working buffer.

Activations and what every plan needs (codebooks, norms, embeddings, head) come first; the planner splits the
rest.
"""

from dataclasses import dataclass, replace
from functools import partial

from pliant.compiler.executable.encoder_stages import arena_bytes, fixed_bytes, word_format
from pliant.errors import BudgetError, InputError
from pliant.ir.cost import cost_table
from pliant.plan.result import Plan
from pliant.plan.submodel.split_memory import Share, layer_sizes, least, preload_sizes, split
from pliant.plan.submodel.submodel import rank, submodels
from pliant.quantities import format_seconds
from pliant.run.submodel.planning import Planner, SessionOptions
from pliant.store.container import BLOCK
from pliant.store.read import Store

_ANY_TARGET_S = 3600.0
"""Targets from here on are those of users who named none."""


@dataclass(frozen=True, slots=True)
class Beside:
    """Bytes that a session takes beside its weights: activations, and what every plan of its model needs.

    Activations are those of inputs of up to `n_tokens`.
    """

    arena_bytes: int
    fixed_bytes: int
    n_tokens: int

    @property
    def total_bytes(self) -> int:
        return self.arena_bytes + self.fixed_bytes


def granted(planner: Planner, options: SessionOptions, beside: Beside) -> SessionOptions:
    """`options` with its memory, where that is bounded, split into preload and working buffer.

    The split that is expected to be most accurate at `options.length` wins; more memory never makes that
    worse. A preload or a working buffer that is given is kept to.

    Raises BudgetError naming the least memory under which a plan keeps the target, InputError where the
    buffers that were asked for do not fit.
    """
    if options.memory_bytes is None:
        return options
    left = options.memory_bytes - beside.total_bytes
    asked = (options.preload_bytes or 0) + (options.working_bytes or 0)
    if asked > max(left, 0):
        raise _too_much_asked(options, asked, beside)
    if options.working_bytes is not None:
        preload = options.preload_bytes
        return replace(options, preload_bytes=left - options.working_bytes if preload is None else preload)
    share = _share(planner, options, left, beside)
    held = share.plan.memory.preload_bytes
    preload = held if options.preload_bytes is None else options.preload_bytes
    if left - held < BLOCK:  # no read fits
        return replace(options, preload_bytes=preload, layer_bytes=0)
    return replace(options, preload_bytes=preload, working_bytes=left - held, layer_bytes=share.layer_bytes)


def _share(planner: Planner, options: SessionOptions, n_bytes: int, beside: Beside) -> Share:
    preloads, layers = preload_sizes(planner.shape), layer_sizes(planner.shape)
    if options.preload_bytes is not None:
        preloads = (options.preload_bytes,)
    planned = partial(_planned, planner, options)
    share = split(n_bytes, preloads, layers, planned, partial(_value, planner, options))
    if share is not None:
        return share
    enough = least(preloads, layers, planned)
    if enough is None:  # with all memory there is: the error says what the target would have to be
        planner.resident(replace(options, memory_bytes=None, preload_bytes=preloads[-1]))
        raise AssertionError("there is a plan that no split of the memory gives")
    raise _too_little(options, enough.needs_bytes, beside)


def _planned(planner: Planner, options: SessionOptions, preload_bytes: int, layer_bytes: int) -> Plan | None:
    """The plan for `options.length` with so much preloaded and read for a layer; None where none is."""
    try:
        return planner.resident(replace(options, preload_bytes=preload_bytes, layer_bytes=layer_bytes))[0]
    except BudgetError:
        return None


def _value(planner: Planner, options: SessionOptions, plan: Plan) -> tuple[float, ...]:
    """Whether it keeps the target; how accurate it is; else its submodel's place (STI 5.3), and fidelity."""
    how, shape = options.planning, planner.shape
    if not plan.meets_target:
        return (0.0, -plan.latency_p95_s)
    if plan.expected_accuracy is not None and how.choose == "accuracy":
        return (1.0, 1.0 + plan.expected_accuracy)
    costs = cost_table(planner.profile, planner.bucket(options.length), "p95")
    order = rank(submodels(shape.n_layers, shape.widths, costs), how.similar)
    place = next(i for i, c in enumerate(order) if (c.n, c.m) == (plan.n, plan.width))
    return (1.0, -float(place), plan.fidelity)


def _too_much_asked(options: SessionOptions, asked: int, beside: Beside) -> InputError:
    """Why the buffers that were asked for do not fit the memory."""
    total = asked + beside.total_bytes
    return InputError(
        f"a preload and a working buffer of {asked} bytes do not fit into {options.memory_bytes} bytes of "
        f"memory beside activations ({beside.arena_bytes}) and codebooks, embeddings and head "
        f"({beside.fixed_bytes}): give at least {total} bytes, or smaller buffers, or leave preload and "
        "working out, so that the planner splits the memory."
    )


def _too_little(options: SessionOptions, weight_bytes: int, beside: Beside) -> BudgetError:
    """The least memory that is enough, and what takes it."""
    total = weight_bytes + beside.total_bytes
    is_hurried = options.latency_s < _ANY_TARGET_S
    within = f" within {format_seconds(options.latency_s)}" if is_hurried else ""
    return BudgetError(
        f"{options.memory_bytes} bytes of memory are too little to answer {beside.n_tokens} tokens{within}: "
        f"weights take at least {weight_bytes}, activations {beside.arena_bytes}, codebooks, embeddings and "
        f"head {beside.fixed_bytes}. Give at least {total} bytes"
        f"{', or raise the latency target' if is_hurried else ''}."
    )


def beside_weights(store: Store, options: SessionOptions, n_tokens: int) -> Beside:
    """What a session on `store` with room for `n_tokens` takes beside its weights."""
    layers = [store.resident(k) for k in range(store.spec.n_layers)]
    fixed = fixed_bytes(store.spec, layers, store.embeddings, store.head, options.compute)
    arena = arena_bytes(store.spec, word_format(store.embeddings), n_tokens, options.compute)
    return Beside(arena, fixed, n_tokens)
