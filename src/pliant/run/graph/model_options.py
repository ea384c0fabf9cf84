"""How a session on an ONNX model compiles it."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import get_args

from pliant.errors import InputError
from pliant.ir.bitwidths import BYTE_BITS, PLANES, WeightFormat, check_weights
from pliant.ir.port import Port
from pliant.models.encoder.encoder_graph import ComputeDtype
from pliant.plan.precision import PrecisionChoice
from pliant.quantities import check_whole
from pliant.run.batches.buckets import Buckets, check_mapping
from pliant.run.graph.schedule_graph import ScheduleKind
from pliant.run.session.feeds import FeedsLike


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """`dims` fixes symbolic dimensions; `without` names passes to leave out; at most `images` are kept.

    `schedule` selects how layouts and loops are chosen (run/graph/schedule_graph.py). `weights` is the number
    of bits per weight (compiler/passes/code_weights.py), `compute` the arithmetic. Dimensions of `buckets`
    are padded, and images for all their sizes are kept. `memory_bytes` limits what the session adds to the
    process; weights of "auto" are "fp32" if that fits, else of the most bits that fit. `precision` says how
    `compute` was chosen, where it was. Codes of weights are chosen for products with the inputs that
    `examples` give, if there are any.
    """

    dims: Mapping[str, int]
    without: Collection[str] = ()
    images: int = 8
    schedule: ScheduleKind = "static"
    weights: WeightFormat = "fp32"
    compute: ComputeDtype = "fp32"
    buckets: Buckets = field(default_factory=Buckets)
    memory_bytes: int | None = None
    precision: PrecisionChoice | None = None
    examples: Sequence[FeedsLike] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        check_mapping(self.dims, "dims", '{"batch": 1}')
        if isinstance(self.without, str) or not isinstance(self.without, Collection):
            raise InputError(f"without is {self.without!r}; give names of passes, such as ('fuse',).")
        check_whole(self.images, "images")
        if self.images < 1:
            raise InputError(f"at least one image has to be kept, not {self.images}.")
        if self.schedule not in get_args(ScheduleKind):
            raise InputError(
                f"no schedule is called {self.schedule!r}; give one of {get_args(ScheduleKind)}."
            )
        check_weights(self.weights)
        if self.compute not in get_args(ComputeDtype):
            raise InputError(f"nothing computes in {self.compute!r}; give one of {get_args(ComputeDtype)}.")
        if self.compute == "int8" and self.weights == "fp32":
            raise InputError(
                f"int8 products take weights of few bits, not fp32; give weights={BYTE_BITS} as well, which "
                f"is the most faithful, or 1 to {PLANES}."
            )
        if self.compute == "bf16" and self.weights == BYTE_BITS:
            raise InputError(
                f"bf16 products take weights in fp32 or codes of 1 to {PLANES} bits, not {BYTE_BITS}; give "
                "compute='int8' or 'fp32' with these."
            )

    @property
    def is_open(self) -> bool:
        """Whether executables may serve several sizes. Measured schedules and memory limits hold for one size
        only.
        """
        return self.schedule == "static" and self.memory_bytes is None and not self.buckets.sizes

    def check_ports(self, ports: Iterable[Port]) -> None:
        """Raise InputError for options that do not work with sequences or optional values."""
        for port in ports:
            if port.element is not None:
                self._check_undivided(f"whose {port.name!r} is {port}")

    def check_parts(self, host: str) -> None:
        """Raise InputError for options that do not work with a model that data-dependent shapes divide into
        parts.
        """
        self._check_undivided(f"with operators that decide shapes or control by data: {host}")

    def _check_undivided(self, which: str) -> None:
        held = {
            "buckets": bool(self.buckets.sizes),
            "weights": self.weights not in ("fp32", "auto") or self.compute != "fp32",
            "memory": self.memory_bytes is not None,
        }
        for name, is_given in held.items():
            if is_given:
                raise InputError(f"{name} cannot be given for a model {which}. Compile it without.")
