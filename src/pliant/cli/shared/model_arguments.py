"""The options of a model in `pliant node`: its name, its source and how it is opened."""

import logging
import re
from collections.abc import Hashable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, final

from pliant.api.model import (
    CompiledProgram,
    ElasticModel,
    EncoderModel,
    Model,
    OnnxGraph,
    RecurrentNetwork,
    unsupported_error,
)
from pliant.api.open_endpoint import open_endpoint
from pliant.api.resolve import resolve
from pliant.cli.shared.refuse_options import refuse_options
from pliant.cli.shared.show import say
from pliant.cli.shared.verb_options import has_accuracy, no_examples_error
from pliant.cli.shared.weight_bits import WeightBits, parse_weights
from pliant.errors import BudgetError, ClusterError, InputError, ModelError, NodeError
from pliant.ir.dilation import Dilation
from pliant.models.onnx.onnx_text import OnnxText, open_onnx_text
from pliant.plan.precision import TOLERANCE, ComputePrecision
from pliant.plan.submodel.plan_options import Depths
from pliant.quantities import parse_bytes
from pliant.route.choice.energy import RadioModel
from pliant.run.process_memory import MemoryBudget
from pliant.run.reservation import Reservation
from pliant.run.session.session import Session
from pliant.serve.answers.samples import sample_requests
from pliant.serve.node.power import read_energy, read_radio
from pliant.serve.repository.model_entry import FIRST_VERSION, ModelEndpoints, ModelEntry, ModelKey, OpenModel

_LOG = logging.getLogger("pliant.serve")
PATIENCE_S = 120.0
"""How long to wait for the workers of a cluster."""
_SAMPLED = (1, 64)
"""Input lengths that measure the memory of a model that cannot share a budget."""
_NAMED = re.compile(r"([A-Za-z0-9._-]+)(?::([A-Za-z0-9._-]+))?=(.+)", re.DOTALL)


@final
@dataclass(slots=True)
class MeasuredBytes:
    """The memory that a model outside the division of the budget took, for files with this stamp."""

    stamp: Hashable = None
    n_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelArguments:
    """The options of one model of `pliant node`, named as on the command line.

    Without `name` the name comes from the source. With `announce`, workers find its cluster by multicast DNS.
    """

    source: str
    name: str | None = None
    version: str = FIRST_VERSION
    memory: str | None = None
    preload: str | None = None
    threads: int | None = None
    depths: Depths | None = None
    weights: WeightBits = None
    compute: ComputePrecision = "fp32"
    tolerance: float = TOLERANCE
    dilate: float = 1.0
    cluster: str | None = None
    workers: int | None = None
    power: str | None = None
    worker_power: tuple[str, ...] = ()
    cluster_radio: str | None = None
    worker_radio: tuple[str, ...] = ()
    key: Path | None = None
    announce: bool = False
    load: bool = True

    def entry(
        self,
        endpoints: ModelEndpoints,
        *,
        has_upstreams: bool = False,
        compute_workers: int | None = None,
    ) -> ModelEntry:
        """Return the entry for a repository. Raises PliantError for a source that names no model.

        With `has_upstreams` a model that only a cluster runs waits for no worker: upstreams may answer.
        `compute_workers` is the node's option.
        """
        model = self.resolve_model()
        return ModelEntry(
            key=ModelKey(model.name, self.version),
            open=partial(
                self.open_sessions,
                measured=MeasuredBytes(),
                has_upstreams=has_upstreams,
                compute_workers=compute_workers,
            ),
            source=self.source,
            settings=self,
            stamp=self._stamp,
            endpoints=endpoints,
            is_initial=self.load,
        )

    def found(self, key: ModelKey, measured: MeasuredBytes, compute_workers: int | None = None) -> ModelEntry:
        """Return the entry of a source that is checked only when opened; its files may be incomplete."""
        return ModelEntry(
            key=key,
            open=partial(self.open_sessions, measured=measured, compute_workers=compute_workers),
            source=self.source,
            settings=self,
            stamp=self._stamp,
            is_initial=self.load,
        )

    def resolve_model(self) -> Model:
        """Return the model. Raises InputError for options that it does not have in this configuration."""
        self._watts_by_name()
        self._radios_by_name()
        model = resolve(self.source)
        if isinstance(model, EncoderModel) and self.cluster is None:
            raise unsupported_error(model, "pliant node without --cluster")
        if self.name is not None:
            model = replace(model, name=self.name)
        if isinstance(model, EncoderModel) and self.cluster is not None:
            planned = ("preload", "depths", "weights", "compute", "tolerance")
            refuse_options(model, self, planned, "leave it out with --cluster")
            return model
        if not isinstance(model, ElasticModel):
            refuse_options(model, self, ("preload", "depths"))
        if not isinstance(model, OnnxGraph):
            refuse_options(model, self, ("weights",), "it is for ONNX models")
        if not isinstance(model, ElasticModel | OnnxGraph):
            refuse_options(model, self, ("compute", "tolerance"))
        if self.compute == "auto" and not has_accuracy(model):
            raise no_examples_error(model)
        if self.compute != "auto":
            refuse_options(model, self, ("tolerance",), "it is for --compute auto")
        if self.cluster is None:
            of_cluster = ("workers", "worker_power", "cluster_radio", "worker_radio", "key")
            refuse_options(model, self, of_cluster, "it is for --cluster")
        return model

    def open_sessions(
        self,
        memory: MemoryBudget | None,
        measured: MeasuredBytes,
        *,
        has_upstreams: bool = False,
        compute_workers: int | None = None,
    ) -> OpenModel:
        """Open this device's session and the cluster's; only the latter for models that only clusters run.

        They share `memory` with other models. A limit of the model's own is reserved in it instead, or else,
        before a model that cannot share it is opened, what it took the last time with one compute worker: it
        gets as many as there is room for, at most `compute_workers`. The cluster's weights of this device are
        reserved in addition, as `reserve_weights` does.
        """
        model = self.resolve_model()
        with ExitStack() as stack:
            local = None
            if not isinstance(model, EncoderModel) or self.cluster is None:
                local = self._local(model, memory, measured, stack, compute_workers)
            shared = None
            if self.cluster is not None:
                shared = self._of_cluster(model, memory, stack, is_alone=local is None and not has_upstreams)
            answers = local or shared
            assert answers is not None
            radio = None if self.cluster_radio is None else read_radio(self.cluster_radio)
            radios = radio, self._radios_by_name()
            energy = read_energy(self.power, self._watts_by_name(), answers, *radios)
            answers.text_reader = _text_reader(model, answers)
            close = stack.pop_all().close
        return OpenModel(answers, shared if local is not None else None, energy, close)

    def _local(
        self,
        model: Model,
        budget: MemoryBudget | None,
        measured: MeasuredBytes,
        stack: ExitStack,
        n_workers: int | None,
    ) -> Session[Any]:
        """Raises BudgetError if the budget is too small for it."""
        shares = self.memory is None and isinstance(model, ElasticModel | RecurrentNetwork)
        reserved = Reservation(model.name)
        if budget is not None:
            stack.callback(budget.release, reserved)
            if self.memory is not None:
                budget.reserve_fixed(reserved, parse_bytes(self.memory))
            elif not shares:
                is_same = measured.stamp == model.identity and self.weights != "auto"
                budget.reserve_fixed(reserved, measured.n_bytes if is_same else 0)
        memory: MemoryBudget | str | int | None = budget if shares else self.memory
        if budget is not None and memory is None and self.weights == "auto":
            memory = budget.room_for(reserved)  # its weights are coded to fit
        session = open_endpoint(
            model,
            preload=self.preload,
            memory=memory,
            threads=self.threads,
            dilation=Dilation(self.dilate),
            depths=self.depths,
            weights=parse_weights(self.weights),
            compute=self.compute,
            tolerance=self.tolerance,
        )
        stack.enter_context(session)
        reserved.use(session)
        session.budgeted = session.budgeted or reserved
        if budget is None or self.memory is not None or shares:
            session.divide_threads(n_workers)
            return session
        session.divide_threads(1)
        measured.stamp, measured.n_bytes = model.identity, _taken_bytes(session)
        budget.reserve_fixed(reserved, measured.n_bytes)
        session.divide_threads(n_workers, budget.room_for(reserved))
        budget.reserve_fixed(reserved, session.memory.predicted_bytes)
        return session

    def _of_cluster(
        self, model: Model, budget: MemoryBudget | None, stack: ExitStack, *, is_alone: bool
    ) -> Session[Any]:
        """Raises BudgetError if the budget is too small for its weights on this device.

        If nothing else answers (`is_alone`), waits for a worker, and raises BudgetError as well if the memory
        of its devices is too small; otherwise it may be out of reach until workers come.
        """
        from pliant.api.member_options import reserve_weights  # needs pyzmq
        from pliant.api.open_cluster import Cluster
        from pliant.cluster.net.zmq_sockets import host_and_port, is_every_address

        assert self.cluster is not None
        memory: str | int | None = self.memory
        reserved: Reservation | None = None
        announces = self.announce and not is_every_address(host_and_port(self.cluster)[0])
        if self.announce and not announces:
            say(
                f"the cluster at {self.cluster} is not announced: give the address by which workers reach it."
            )
        if budget is not None:
            reserved = stack.enter_context(reserve_weights(budget, model, memory))
            memory = reserved.n_bytes
        cluster = stack.enter_context(
            Cluster(
                self.cluster,
                key=self.key,
                threads=self.threads,
                memory=memory,
                dilation=Dilation(self.dilate),
                announce=announces,
                on_event=say,
            )
        )
        shared = cluster.open(self.source)  # before the wait for workers: it may be unreadable
        if is_waiting := self.workers is not None or is_alone:
            cluster.wait(1 if self.workers is None else self.workers, PATIENCE_S)
        address = cluster.address.removeprefix("tcp://")
        shared.name = model.name
        if reserved is not None:
            reserved.use(shared)
        shared.budgeted = reserved
        try:
            shared.look_again()  # measures the devices before the first request
        except (BudgetError, ClusterError) as error:
            if is_alone:
                raise
            say(f"{model.name} is served without its cluster at {address} until workers come: {error}")
        else:
            if not is_waiting:
                say(f"{model.name} is served at once; workers may join its cluster at {address} at any time.")
        return shared

    def _watts_by_name(self) -> dict[str, str]:
        """Raises NodeError for a text that is not NAME=WATTS."""
        return _by_name("--worker-power", self.worker_power, "WATTS", "4.5")

    def _radios_by_name(self) -> dict[str, RadioModel]:
        """Raises NodeError for a text that is not NAME=RADIO, and for an unknown radio."""
        named = _by_name("--worker-radio", self.worker_radio, "RADIO", "lte")
        return {name: read_radio(text) for name, text in named.items()}

    def _stamp(self) -> Hashable:
        return self.resolve_model().identity


def _by_name(option: str, texts: tuple[str, ...], value: str, example: str) -> dict[str, str]:
    """Return the values of workers by name. Raises NodeError."""
    if wrong := [text for text in texts if not text.partition("=")[0] or "=" not in text]:
        raise NodeError(
            f"{option} {wrong[0]!r:.80} is not NAME={value}; name a worker, such as hub={example}."
        )
    return dict(text.rsplit("=", 1) for text in texts)


def _text_reader(model: Model, session: Session[Any]) -> OnnxText | None:
    """Return how a model on arrays reads text; a damaged tokenizer is logged, since arrays do not need it."""
    if not isinstance(model, OnnxGraph | CompiledProgram) or model.path is None:
        return None
    try:
        return open_onnx_text(model.path, session.inputs)
    except ModelError as error:
        _LOG.warning("%s reads no texts: %s", model.name, error)
        return None


def _taken_bytes(session: Session[Any]) -> int:
    """Return the bytes that a session needs after answering samples of these lengths."""
    for sample in sample_requests(session, _SAMPLED):
        session.answer(sample)
    return session.memory.predicted_bytes


def parse_model(text: str) -> dict[str, str]:
    """Parse `MODEL`, `NAME=MODEL` or `NAME:VERSION=MODEL` to fields of ModelArguments. Raises InputError."""
    found = _NAMED.fullmatch(text)
    if found is None:
        if text.startswith("="):
            raise InputError(f"{text!r:.80} names no model; give NAME=MODEL, such as search=model.onnx.")
        return {"source": text}
    name, version, source = found.groups()
    return {"name": name, "source": source, **({} if version is None else {"version": version})}
