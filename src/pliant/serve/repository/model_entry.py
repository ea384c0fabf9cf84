"""A model that a node can serve: name and version, how to open it, and its endpoints."""

import re
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any

from pliant.errors import InputError
from pliant.route.choice.objective import Objective
from pliant.route.choice.request_terms import NO_TERMS, Terms
from pliant.run.process_memory import MemoryBudget
from pliant.run.session.session import Session
from pliant.serve.answers.answer_energy import AnswerEnergy

_WORD = re.compile(r"(?!\.+$)[A-Za-z0-9._-]{1,128}")
FIRST_VERSION = "1"


@dataclass(frozen=True, slots=True, order=True)
class ModelKey:
    """A model's name and version, as used in paths. Raises InputError if they are invalid."""

    name: str
    version: str = FIRST_VERSION

    def __post_init__(self) -> None:
        for what, text in (("name", self.name), ("version", self.version)):
            if not _WORD.fullmatch(text):
                raise InputError(
                    f"{text[:140]!r} is not a model {what}: give 1 to 128 letters, digits, '.', '_' and '-'."
                )

    def __str__(self) -> str:
        return self.name if self.version == FIRST_VERSION else f"{self.name} version {self.version}"

    @property
    def age(self) -> tuple[int, int, str]:
        """Sort key of versions, oldest first."""
        return version_age(self.version)


def version_age(version: str) -> tuple[int, int, str]:
    """Sort key of versions, oldest first: words, then numbers by value."""
    is_number = version.isdecimal() and version.isascii()
    return (1, int(version), "") if is_number else (0, 0, version)


def distinct(entries: "Iterable[ModelEntry]") -> "list[ModelEntry]":
    """Return the entries as a list. Raises InputError for two with the same name and version."""
    every = list(entries)
    keys = [entry.key for entry in every]
    if twice := sorted({str(key) for key in keys if keys.count(key) > 1}):
        raise InputError(
            f"two models are called {', '.join(twice)}: serve one as NAME=MODEL, or give it another version."
        )
    return every


@dataclass(frozen=True, slots=True)
class OpenModel:
    """The opened sessions of a model: one of this device, and optionally one of a cluster.

    `energy` measures joules if it differs from the node's options. `close` releases what the sessions need
    beside themselves; call it after they are closed.
    """

    local: Session[Any]
    cluster: Session[Any] | None = None
    energy: AnswerEnergy | None = None
    close: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True)
class ModelEndpoints:
    """Options of a model's node that differ from the other models; None means the node's options.

    `upstreams` are other nodes with this model; `terms` are the defaults of requests that start here,
    completed by those of the node.
    """

    upstreams: tuple[str, ...] | None = None
    discovers: bool | None = None
    is_announced: bool | None = None
    terms: Terms = NO_TERMS
    objective: Objective | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEntry:
    """A model of a repository.

    `open` is called on a thread with the shared memory budget; it raises PliantError. `settings` and `stamp`
    (the state of the files) tell whether a loaded model is still the one that would be opened. Models with
    `is_initial` are loaded when the node starts.
    """

    key: ModelKey
    open: Callable[[MemoryBudget | None], OpenModel]
    source: str = ""
    settings: Hashable = None
    stamp: Callable[[], Hashable] = lambda: None
    endpoints: ModelEndpoints = field(default_factory=ModelEndpoints)
    is_initial: bool = True


def session_entry(local: Session[Any], cluster: Session[Any] | None = None) -> ModelEntry:
    """An entry for open sessions: after it is unloaded it cannot be loaded again."""
    left = [OpenModel(local, cluster)]

    def open_once(memory: MemoryBudget | None) -> OpenModel:
        if not left:
            raise InputError(
                f"{local.name} was given to the node as an open session, and cannot be opened again: name "
                "its files where the node is started."
            )
        return left.pop()

    return ModelEntry(key=ModelKey(local.name), open=open_once)
