"""Models for tests of the node: they answer at once, or when they are told to, and count."""

import threading
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NoReturn

import numpy as np

from pliant.errors import InputError
from pliant.ir.endpoint import Request
from pliant.ir.port import Port
from pliant.ir.reply import Reply
from pliant.run.memory_use import MemoryUse
from pliant.run.session.session import Session
from pliant.run.session.text_feeds import AnswerArrays
from pliant.serve.protocol.oip_tensors import DATATYPES
from tests.serve.nodes import PATIENCE_S


def texts(*words: str | bytes) -> np.ndarray:
    """A BYTES tensor."""
    array = np.empty(len(words), object)
    array[:] = [word.encode() if isinstance(word, str) else word for word in words]
    return array


class Fake(Session[None]):
    """A session that a node asks; a test of a node calls it in no other way."""

    platform = "test"
    plan = None
    memory = MemoryUse(None, (), (), 0)
    weight_bytes = 0

    def __call__(self, value: object, /) -> Reply[None]:
        raise AssertionError("a node makes requests")

    def explain(self, length: int) -> None:
        raise AssertionError("a node makes requests")

    def profile(self, feeds: object, runs: int = 20) -> NoReturn:
        raise AssertionError("a node makes requests")

    def _run(self, feeds: object, out: object) -> dict[str, np.ndarray]:
        raise AssertionError("a node makes requests")

    def _reply(self, request: Request) -> Reply[None]:
        start_s = self._clock()
        outputs = self._answer(request)
        self._slow_down(start_s)
        return Reply(outputs, self.name, 0.0, None, request.length)

    @abstractmethod
    def _answer(self, request: Request) -> AnswerArrays: ...


class Upper(Fake):
    """`text` BYTES [1] -> `upper`, its capitals, and `n`, its length, which is the length of the input too.

    `gate`, where it is cleared, holds answers back. `answered` collects what was asked.
    """

    max_length = 1000
    degree: Literal[1, 2] = 1

    def __init__(self, name: str = "upper", mark: str = "", identity: str = "upper") -> None:
        super().__init__()
        self.name, self.identity = name, identity
        self.inputs = (Port("text", "bytes", (1,)),)
        self.outputs = (Port("upper", "bytes", (1,)), Port("n", "int64", (1,)))
        self.gate = threading.Event()
        self.gate.set()
        self.answered: list[bytes] = []
        self.is_closed = False
        self._mark = mark.encode()

    def request(self, feeds: AnswerArrays) -> Request:
        return Request(len(feeds["text"][0]), tensors=feeds)

    def _answer(self, request: Request) -> AnswerArrays:
        text = request.tensors["text"][0]
        self.answered.append(text)
        assert self.gate.wait(60)
        if text == b"no":
            raise InputError("this text cannot be read.")
        if text == b"bug":
            raise ZeroDivisionError("a bug")
        return {"upper": texts(text.upper() + self._mark), "n": np.array([len(text)])}

    def sample(self, length: int) -> dict[str, np.ndarray]:
        return {"text": texts("a" * length)}

    def close(self) -> None:
        self.is_closed = True


class Echo(Fake):
    """One input of every datatype and open shape; what comes, goes back under the same name."""

    max_length = 1 << 21
    degree: Literal[1, 2] = 1
    identity = "echo"

    def __init__(self, only: Sequence[str] = tuple(DATATYPES)) -> None:
        super().__init__()
        self.name = "echo"
        self.inputs = self.outputs = tuple(Port(dtype, dtype, (None, None)) for dtype in only)

    def request(self, feeds: AnswerArrays) -> Request:
        return Request(next(iter(feeds.values())).size, tensors=feeds)

    def _answer(self, request: Request) -> Mapping[str, np.ndarray]:
        return {name: np.array(array) for name, array in request.tensors.items()}

    def sample(self, length: int) -> dict[str, np.ndarray]:
        raise InputError("there is none")

    def close(self) -> None:
        pass


class Counts(Fake):
    """`text` or `ids` -> `vector`, counts of the bytes or tokens 97, 98 and 99, and 1/3.

    `gate`, where it is cleared, holds answers back.
    """

    name = identity = "counts"
    max_length = 50
    degree: Literal[1, 2] = 1
    inputs = (Port("text", "bytes", (1,)), Port("ids", "int64", (1, None)))
    outputs = (Port("vector", "float32", (1, 4)),)
    ways = (frozenset({"text"}), frozenset({"ids"}))  # type: ignore[assignment]

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.is_asked = threading.Event(), threading.Event()
        self.gate.set()

    def request(self, feeds: Any) -> Request:
        tokens = [*feeds["text"][0]] if "text" in feeds else feeds["ids"][0].tolist()
        return Request(len(tokens), tensors={"ids": np.array([tokens])})

    def _answer(self, request: Request) -> Any:
        self.is_asked.set()
        assert self.gate.wait(PATIENCE_S)
        tokens = request.tensors["ids"][0].tolist()
        return {"vector": np.array([vector_of(tokens)], np.float32)}

    def sample(self, length: int) -> Any:
        raise InputError("there is none")

    def close(self) -> None:
        pass


def vector_of(tokens: list[int] | bytes) -> list[float]:
    return [tokens.count(97), tokens.count(98), tokens.count(99), float(np.float32(1 / 3))]
