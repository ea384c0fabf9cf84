"""The way of a latency target from `pliant.open` to the program that runs: few modules, downwards, one name.

A module is on the way when one of its functions is given the target, or has it among its locals: as the
number, or in a record that has it as a field, directly or in a record of its own (`SessionOptions`, `Budget`,
`Plan`). The way ends where `run/execute.py` is called to run the program of an answer. It goes up where
the module that is called imports the one that calls, itself or through others. A method that the caller's own
class declares is no way up.

Protects: what a target does is read by following imports down, and there is one word for it at each stage.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import grimp
import pytest

import pliant
from pliant.models.hf.checkpoint import open_checkpoint
from pliant.run.submodel.elastic_session import ElasticSession
from pliant.store.build import build
from tests.run.conftest import paper_profile

TARGET_S = 0.0123457
TEXT = "the story was not good"
MOST_MODULES = 12
"""Of the way, without `run/execute.py`: what runs has latest starts, and no target."""
NAMES = {"latency", "text", "target_s"}
"""The user's value, what `quantities` parses, and seconds."""
ROOT = Path(pliant.__file__).parent


@dataclass
class Way:
    """Modules in the order in which they first have the target, its names, and where it is handed up."""

    modules: list[str] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    up: set[str] = field(default_factory=set)
    is_open: bool = True

    def look(self, frame: FrameType, event: str, arg: object) -> None:
        """What `sys.setprofile` calls whenever a function begins or ends."""
        module = _module(frame)
        if module is None or not self.is_open or event not in ("call", "return"):
            return
        code = frame.f_code
        given = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        names = given if event == "call" else tuple(frame.f_locals)
        has = {name: frame.f_locals[name] for name in names if _has(frame.f_locals.get(name))}
        if has and module not in self.modules:
            self.modules.append(module)
        if event == "return":
            return
        self.names |= {name for name, value in has.items() if isinstance(value, float)}
        if has and _goes_up(frame, module):
            self.up.add(f"{_caller(frame)} -> {module}: {code.co_qualname}")

    @contextmanager
    def watched(self) -> Iterator[None]:
        before = sys.getprofile()
        sys.setprofile(self.look)
        try:
            yield
        finally:
            sys.setprofile(before)

    @contextmanager
    def until_executed(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        """Watched to where the first program runs."""
        with monkeypatch.context() as patch, self.watched():
            patch.setattr("pliant.run.submodel.pipeline.execute", self._executed)
            yield
        assert not self.is_open, "no program ran"

    def _executed(self, *args: Any, **options: Any) -> Any:
        from pliant.run.execute import execute

        self.is_open = False
        return execute(*args, **options)


def _has(value: object, depth: int = 3) -> bool:
    """Whether `value` is the target, or a record of it."""
    if isinstance(value, float):
        return abs(value - TARGET_S) < 1e-9
    if depth == 0 or not is_dataclass(value):
        return False
    return any(_has(getattr(value, one.name, None), depth - 1) for one in fields(value))


def _module(frame: FrameType) -> str | None:
    return _module_in(frame.f_code.co_filename)


@cache
def _module_in(file: str) -> str | None:
    path = Path(file)
    if not path.is_relative_to(ROOT):
        return None
    return ".".join(("pliant", *path.relative_to(ROOT).with_suffix("").parts))


def _caller(frame: FrameType) -> str | None:
    """The module of pliant that called, over frames of others (`partial`, `filter`, checks of types)."""
    back = frame.f_back
    while back is not None and _module(back) is None:
        back = back.f_back
    return None if back is None else _module(back)


def _goes_up(frame: FrameType, module: str) -> bool:
    caller = _caller(frame)
    if caller is None or caller == module or not _graph().chain_exists(importer=module, imported=caller):
        return False
    kinds = type(frame.f_locals.get("self")).__mro__
    return not any(kind.__module__ == caller and frame.f_code.co_name in vars(kind) for kind in kinds)


@cache
def _graph() -> grimp.ImportGraph:
    return grimp.build_graph("pliant", cache_dir=None)


def _opened(store: Path, *, latency: float = TARGET_S, memory: str | None = None) -> ElasticSession:
    # Without a margin the part of the target that plans may use is the target: it is followed as well.
    profile = paper_profile()
    session = pliant.open(store, latency=latency, memory=memory, length=8, profile=profile, margin=0.0)
    assert isinstance(session, ElasticSession)
    return session


@pytest.fixture(scope="module")
def store(tiny_model: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A store whose kernels were compiled before: no generator of code is watched."""
    folder = tmp_path_factory.mktemp("latency")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PLIANT_CACHE", str(folder / "cache"))
        path = build(open_checkpoint(tiny_model("bert", n_layers=4, widths=(2, 4))), folder / "store")
        with _opened(path) as session:
            session(TEXT)
        yield path


@pytest.mark.parametrize("memory", [None, "500KB"], ids=["target alone", "bounded memory"])
def test_the_target_of_a_session_goes_down_through_few_modules(
    memory: str | None, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opening plans for the target, and so does the first call: both are watched."""
    way = Way()
    with way.watched():
        session = _opened(store, memory=memory)
    with session, way.until_executed(monkeypatch):
        session(TEXT)
    _assert_short(way)
    assert way.modules[0] == "pliant.api.open_session"


def test_the_target_of_a_call_goes_down_through_few_modules(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A target that no plan was made for yet: the call has to plan."""
    way = Way()
    with _opened(store, latency=0.5) as session, way.until_executed(monkeypatch):
        session(TEXT, latency=TARGET_S)
    _assert_short(way)
    assert way.modules[0] == "pliant.run.session.text_session"


def _assert_short(way: Way) -> None:
    assert not way.up
    assert way.names == NAMES
    assert len(way.modules) <= MOST_MODULES, way.modules
    assert "pliant.plan.submodel.search" in way.modules, "no plan was made"
