"""The kinds of models: one frozen value for each, without threads, kernels or devices.

A model has its path, its name, its labels, the content hash of its weights, and the numbers of layers
(`depths`) and slices (`widths`) that it was trained to run with; both are empty for a model that always runs
as a whole. Files are read on first access of a property. `api.resolve` creates models.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, final

from pliant.errors import ModelError
from pliant.models.hf.checkpoint import open_checkpoint
from pliant.models.identity import directory_identity
from pliant.models.spec import ModelSpec
from pliant.settings import cache_folder
from pliant.store.manifest import Manifest, read_manifest

# The readers of each kind are slow to import, so they are imported when that kind is read.
if TYPE_CHECKING:
    from pliant.models.encoder.encoder_architecture import EncoderArchitecture
    from pliant.models.recurrent.recurrent_source import RecurrentSource

Numbers = tuple[int, ...]


@final
@dataclass(frozen=True, slots=True)
class RandomWeights:
    """A configuration, by its name or its JSON file, with random weights from a seed."""

    config: str
    seed: int


@final
@dataclass(frozen=True)
class StoreModel:
    """A store: shards of every bitwidth, as written by `pliant pack`."""

    kind: ClassVar[str] = "a store"
    name: str
    path: Path

    @cached_property
    def manifest(self) -> Manifest:
        """Raises StoreError."""
        return read_manifest(self.path)

    @property
    def labels(self) -> tuple[str, ...] | None:
        return self.manifest.spec.head.labels

    @property
    def identity(self) -> str:
        return self.manifest.identity

    @property
    def depths(self) -> Numbers:
        return self.manifest.spec.trained_depths

    @property
    def widths(self) -> Numbers:
        return self.manifest.spec.widths


@final
@dataclass(frozen=True)
class CheckpointModel:
    """A Hugging Face directory of a text encoder, which can be packed into a store."""

    kind: ClassVar[str] = "a text encoder"
    name: str
    path: Path

    @cached_property
    def spec(self) -> ModelSpec:
        """From config.json and the headers of the weights. Raises ModelError."""
        return open_checkpoint(self.path).spec

    @property
    def labels(self) -> tuple[str, ...] | None:
        return self.spec.head.labels

    @cached_property
    def identity(self) -> str:
        return directory_identity(self.path, cache_folder())

    @property
    def depths(self) -> Numbers:
        return self.spec.trained_depths

    @property
    def widths(self) -> Numbers:
        return self.spec.widths


@final
@dataclass(frozen=True)
class EncoderModel:
    """An encoder of another family, or with random weights; it runs on clusters and cannot be packed."""

    kind: ClassVar[str] = "an encoder that runs split over a cluster"
    name: str
    weights: Path | RandomWeights

    @property
    def path(self) -> Path | None:
        return self.weights if isinstance(self.weights, Path) else None

    @cached_property
    def family(self) -> "EncoderArchitecture":
        """Read from the configuration only, if that names an architecture. Raises ModelError."""
        from pliant.models.encoder.encoder_directory import read_family
        from pliant.models.encoder.encoder_random import random_encoder
        from pliant.models.hf.safetensors_file import index_weights

        if isinstance(self.weights, RandomWeights):
            return random_encoder(self.weights.config, self.weights.seed).family
        return read_family(self.weights / "config.json", index_weights(self.weights).keys())

    @property
    def labels(self) -> tuple[str, ...] | None:
        return self.family.labels

    @cached_property
    def identity(self) -> str:
        from pliant.models.encoder.encoder_random import random_encoder

        if isinstance(self.weights, RandomWeights):
            return random_encoder(self.weights.config, self.weights.seed).identity
        return directory_identity(self.weights, cache_folder())

    @property
    def depths(self) -> Numbers:
        return (self.family.spec.n_layers,)

    @property
    def widths(self) -> Numbers:
        return (self.family.spec.n_heads,)


@final
@dataclass(frozen=True)
class RecurrentNetwork:
    """A recurrent model: a directory, or a configuration with random weights."""

    kind: ClassVar[str] = "a recurrent model"
    depths: ClassVar[Numbers] = ()
    widths: ClassVar[Numbers] = ()
    name: str
    weights: Path | RandomWeights

    @property
    def path(self) -> Path | None:
        return self.weights if isinstance(self.weights, Path) else None

    @cached_property
    def source(self) -> "RecurrentSource":
        """Weights and vocabulary, read or generated. Raises ModelError."""
        from pliant.models.recurrent.recurrent_source import open_recurrent_source, random_recurrent

        if isinstance(self.weights, RandomWeights):
            return random_recurrent(self.weights.config, self.weights.seed)
        return open_recurrent_source(self.weights)

    @property
    def labels(self) -> tuple[str, ...] | None:
        return self.source.spec.labels

    @property
    def identity(self) -> str:
        return self.source.identity


@final
@dataclass(frozen=True, eq=False)
class OnnxGraph:
    """An ONNX model: its file, or its bytes or ModelProto in memory."""

    kind: ClassVar[str] = "an ONNX model"
    labels: ClassVar[None] = None
    depths: ClassVar[Numbers] = ()
    widths: ClassVar[Numbers] = ()
    name: str
    content: Path | bytes | Any

    @property
    def path(self) -> Path | None:
        return self.content if isinstance(self.content, Path) else None

    @cached_property
    def identity(self) -> str:
        """The hash of the file and of its external weights. Raises ModelError, GraphError."""
        from pliant.models.onnx.onnx_file import open_onnx

        return open_onnx(self.content).identity(cache_folder())


@final
@dataclass(frozen=True)
class CompiledProgram:
    """A directory written by `pliant compile -o`."""

    kind: ClassVar[str] = "a compiled model"
    labels: ClassVar[None] = None
    depths: ClassVar[Numbers] = ()
    widths: ClassVar[Numbers] = ()
    name: str
    path: Path

    @cached_property
    def identity(self) -> str:
        """The hash of the model that it was compiled from. Raises StoreError."""
        from pliant.compiler.aot.compiled_directory import compiled_identity

        return compiled_identity(self.path)


ElasticModel = StoreModel | CheckpointModel
"""Models that are planned under a latency target, which determines depth, width and bits."""
Model = StoreModel | CheckpointModel | EncoderModel | RecurrentNetwork | OnnxGraph | CompiledProgram

_CLUSTER = ("cluster plan", "cluster run", "cluster bench", "worker", "node --cluster")
_ANY = ("run", "plan", "profile", "eval", "bench", "inspect", "node")
VERBS: dict[type[Model], tuple[str, ...]] = {
    StoreModel: (*_ANY, "compile", "demo", *_CLUSTER),
    CheckpointModel: (*_ANY, "compile", "demo", "pack", "stretch", *_CLUSTER),
    EncoderModel: ("inspect", *_CLUSTER),
    RecurrentNetwork: (*_ANY, "compile"),
    OnnxGraph: (*_ANY, "compile"),
    CompiledProgram: _ANY,
}
"""The commands that accept each kind of model."""


def unsupported_error(model: Model, asked: str) -> ModelError:
    """Return the error of a command or function `asked` that does not accept `model`; it names the commands
    that do, and the Python function if a function was called."""
    *others, last = (f"pliant {verb}" for verb in VERBS[type(model)])
    function = "pliant.Cluster(...).open" if isinstance(model, EncoderModel) else "pliant.open"
    in_python = f"{function}, or on the command line " if asked.startswith("pliant.") else ""
    return ModelError(
        f"{model.name} is {model.kind}, which {asked} does not take; use {in_python}{', '.join(others)} or "
        f"{last}."
    )
