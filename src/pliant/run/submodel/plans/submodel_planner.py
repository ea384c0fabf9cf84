"""A session's options, and the planner of a store on a device."""

from dataclasses import dataclass, field, replace
from numbers import Integral

import numpy as np

from pliant.arrays import Float, Int
from pliant.errors import InputError, StoreError
from pliant.ir.bitwidths import LOWEST_BITS
from pliant.ir.cost import TOKENISE, CostTable, Span, cost_table, dilate, latency, simulate
from pliant.ir.device import DeviceProfile
from pliant.ir.dilation import Dilation
from pliant.ir.program import Program
from pliant.ir.times.timing import Percentile
from pliant.models.encoder.encoder_graph import ComputeDtype
from pliant.plan.plan import BitGrid, Budget, Plan
from pliant.plan.precision import PrecisionChoice
from pliant.plan.submodel.accuracy import (
    AccuracyInterval,
    ExpectedAccuracy,
    accuracy_curves,
    expected_accuracy,
)
from pliant.plan.submodel.io_plan import fidelity, importance_weights
from pliant.plan.submodel.plan_options import OURS, PlanOptions
from pliant.plan.submodel.preload_set import hold_in_order
from pliant.plan.submodel.search import plan as make_plan
from pliant.plan.submodel.shape import StoreShape, store_shape
from pliant.settings import thread_count
from pliant.store.manifest import Manifest

_WIDER = 1.0
"""The priority penalty, in planes, of slices beyond the narrowest width in the buffer, since not all
submodels run them.
"""

LEAST_S = 1e-6
"""A target so small that the plan is always the smallest submodel."""

MARGIN = 0.05
"""The default fraction of a target reserved for time outside the lanes."""


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """The options of a session. `length` is the input length in tokens for which the preload set is chosen.

    `margin` is the fraction of the target reserved for time outside the lanes (Python, wake-ups); it replaces
    the plan's own margin. `working_bytes` limits the memory into which layers are read, `layer_bytes` the
    reads for one layer. `memory_bytes` limits all memory that the session adds to its process; it includes
    the preload and the working buffer, which are chosen where they are None (`memory_split`).
    Without a limit, weights are preloaded only on request. `yields` frees half the preload buffer whenever
    the system reports memory pressure; a buffer that is chosen then has at most `most_preload_bytes`, and a
    working buffer that is chosen at most `most_working_bytes`, if a plan fits with so little. `adapts` plans
    with the recently observed compute and read speeds instead of the profiled ones. `precision` says how
    `compute` was chosen, where it was; plans print it.
    """

    target_s: float
    preload_bytes: int | None = 0
    length: int = 64
    n_threads: int = field(default_factory=thread_count)
    is_anytime: bool = True
    best_effort: bool = False
    compute: ComputeDtype = "fp32"
    yields: bool = True
    adapts: bool = True
    plan: PlanOptions = OURS
    margin: float = MARGIN
    working_bytes: int | None = None
    memory_bytes: int | None = None
    layer_bytes: int | None = None
    precision: PrecisionChoice | None = None
    most_preload_bytes: int | None = None
    most_working_bytes: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.length, Integral):
            raise InputError(f"{self.length!r} is not a length; give a whole number of tokens, such as 64.")
        if self.length < 1 or self.n_threads < 1:
            raise InputError(
                f"a session needs a length and a number of threads of at least 1, not {self.length} and "
                f"{self.n_threads}."
            )

    @property
    def budget(self) -> Budget:
        return Budget(
            self.target_s, self.preload_bytes or 0, self.working_bytes, self.layer_bytes, self.memory_bytes
        )

    @property
    def planning(self) -> PlanOptions:
        """The options of its plans."""
        return replace(
            self.plan,
            is_anytime=self.is_anytime,
            best_effort=self.best_effort or self.plan.best_effort,
            margin=self.margin,
        )


@dataclass(frozen=True, slots=True)
class SubmodelPlanner:
    """The planning data of one store on one device.

    Without measured importance all shards count equally; without measured accuracy the largest submodel wins.
    """

    shape: StoreShape
    profile: DeviceProfile
    importance: Float[np.ndarray, "N M"]
    accuracy: ExpectedAccuracy | None

    def bucket(self, n_tokens: int) -> int:
        """The profiled length that inputs of `n_tokens` are planned with."""
        lengths = self.profile.lengths
        return next((n for n in lengths if n >= n_tokens), lengths[-1])

    def plan(
        self,
        options: SessionOptions,
        n_tokens: int,
        *,
        held: Int[np.ndarray, "N M"] | None = None,
        arena_bytes: int = 0,
        fixed_bytes: int = 0,
        dilation: Dilation = Dilation(),  # noqa: B008 - frozen
        is_promised: bool = False,
    ) -> Plan:
        """The plan for inputs of `n_tokens`; with `held`, the planes in memory are the preload set.

        It meets the target even if everything takes `dilation` times as long as profiled. With `held`, if no
        plan meets the target, it is the smallest submodel, unless `is_promised`.

        Raises BudgetError naming the nearest feasible target.
        """
        how = options.planning
        best_effort = how.best_effort or (held is not None and not is_promised)
        terms = (self.bucket(n_tokens), replace(how, best_effort=best_effort), held, dilation)
        made = self._within(options, terms, (arena_bytes, fixed_bytes))
        chosen = options.precision
        return made if chosen is None else replace(made, reasons=(*chosen.reasons, *made.reasons))

    def _within(
        self,
        options: SessionOptions,
        terms: tuple[int, PlanOptions, Int[np.ndarray, "N M"] | None, Dilation],
        sizes: tuple[int, int],
    ) -> Plan:
        budget, most = options.budget, options.working_bytes
        if budget.layer_bytes is None or most is None:
            return self._plan(budget, terms, sizes)
        # Limit the reads of a layer first; limit the buffer only if that is not enough.
        made = self._plan(replace(budget, working_bytes=None), terms, sizes)
        if made.memory.working_bytes > most:
            return self._plan(budget, terms, sizes)
        return replace(made, budget=budget)

    def _plan(
        self,
        budget: Budget,
        terms: tuple[int, PlanOptions, Int[np.ndarray, "N M"] | None, Dilation],
        sizes: tuple[int, int],
    ) -> Plan:
        length, how, held, dilation = terms
        made = make_plan(
            self.shape,
            dilate(cost_table(self.profile, length, "p95"), dilation),
            budget,
            self.importance,
            how,
            expected=dilate(cost_table(self.profile, length, "median"), dilation),
            held=held,
            accuracy=None if self.accuracy is None else self.accuracy.grid,
            arena_bytes=sizes[0],
            fixed_bytes=sizes[1],
        )
        made = replace(made, accuracy_interval=self.interval(made.expected_accuracy))
        if dilation == Dilation():
            return made
        reason = (
            f"by the latest answers compute may take {dilation.compute:.2f} times as long as the profile's "
            f"95th percentile and reads {dilation.io:.2f} times"
        )
        return replace(made, reasons=(reason, *made.reasons), dilation=dilation)

    def least_s(self, options: SessionOptions, n_tokens: int, held: Int[np.ndarray, "N M"]) -> float:
        """The time of the smallest submodel for inputs of `n_tokens`, by the 95th percentiles."""
        hurried = replace(options, target_s=LEAST_S, best_effort=True)
        return self.plan(hurried, n_tokens, held=held).latency_p95_s

    def forecast(
        self, program: Program, n_tokens: int, percentile: Percentile = "median"
    ) -> tuple[float, tuple[Span, ...]]:
        """Seconds from text to answer of `program` over `n_tokens`, and its steps' spans, by the profile."""
        costs = cost_table(self.profile, min(n_tokens, self.profile.lengths[-1]), percentile)
        spans = simulate(program, costs, {"tokens": n_tokens})
        return costs.seconds(TOKENISE) + latency(spans), spans

    def undilated(self, n_tokens: int) -> CostTable:
        """The 95th percentiles for inputs of `n_tokens` on this machine, without emulation."""
        here = replace(self.profile, dilation=Dilation())
        return cost_table(here, min(n_tokens, here.lengths[-1]), "p95")

    def expected_accuracy(self, plan: Plan, bits: BitGrid, errors: tuple[float, ...]) -> float | None:
        """Expected accuracy of `plan`'s submodel at the bits that ran, which may be lower because of late
        loads.
        """
        if bits == plan.bits or self.accuracy is None:
            return plan.expected_accuracy
        weights = importance_weights(self.importance[list(plan.layers), : plan.width])
        known = accuracy_curves(self.accuracy.grid, errors)
        return known.at(plan.n, plan.width, fidelity(bits, weights, errors))

    def interval(self, accuracy: float | None) -> AccuracyInterval | None:
        """The 95 % interval of an expected accuracy; None without measured accuracy."""
        return None if accuracy is None or self.accuracy is None else self.accuracy.interval(accuracy)

    def plan_resident(
        self, options: SessionOptions, *, arena_bytes: int = 0, fixed_bytes: int = 0
    ) -> tuple[Plan, Int[np.ndarray, "N M"]]:
        """The plan for inputs of `options.length`, and the weights kept in memory for inputs of every length.

        The kept weights are planes of every shard, 32 for full fidelity, in an order that depends only on the
        store and its disk, not on target or length (`hold_in_order`). So a session with more time or more
        memory than another on the same device never expects a worse answer, at any length that both can meet.
        With another preload rule than "first", such as the paper's, the plan determines the kept weights.

        Raises BudgetError naming the nearest feasible target.
        """
        if options.planning.preload == "first":
            held = self._held(options.preload_bytes or 0)
            # The target is guaranteed only for the planned length; longer inputs run with best effort.
            plan = self.plan(
                options, options.length, held=held, arena_bytes=arena_bytes, fixed_bytes=fixed_bytes,
                is_promised=True,
            )  # fmt: skip
            return plan, held
        plan = self.plan(options, options.length, arena_bytes=arena_bytes, fixed_bytes=fixed_bytes)
        held = np.zeros(self.importance.shape, np.int64)
        held[list(plan.layers), : plan.width] = plan.held
        return plan, held

    def _held(self, n_bytes: int) -> Int[np.ndarray, "N M"]:
        """The planes of the whole model that a buffer of `n_bytes` holds."""
        shape, disk = self.shape, self.profile.disk_p95
        seek = disk.latency_s * disk.bandwidth_Bps / shape.plane_bytes
        return hold_in_order(shape, shape.n_layers, shape.n_slices, n_bytes, seek=seek, wider=_WIDER)


def planner_of(manifest: Manifest, profile: DeviceProfile) -> SubmodelPlanner:
    """The planner for a store of `manifest` on the device of `profile`.

    Raises StoreError for a store of fewer bits than any submodel runs with.
    """
    spec = manifest.spec
    if manifest.most_planes < LOWEST_BITS:
        raise StoreError(
            f"the store offers {','.join(map(str, manifest.bits))} bits, but submodels run with at least "
            f"{LOWEST_BITS}: pack the model again with --bits {LOWEST_BITS} or more."
        )
    table = manifest.importance
    return SubmodelPlanner(
        shape=store_shape(spec, manifest.bits),
        profile=profile,
        importance=np.asarray(table or np.ones((spec.n_layers, spec.n_heads)), np.float64),
        accuracy=None if manifest.accuracy is None else expected_accuracy(manifest.accuracy),
    )
