"""Models for tests of the node: they answer at once, or when they are told to, and count."""

import threading
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from pliant.errors import InputError
from pliant.ir.endpoint import Endpoint, Request
from pliant.ir.port import Port
from pliant.serve.node.served import Tensors
from pliant.serve.node.whole_endpoint import Whole
from pliant.serve.protocol.inference import Signature
from pliant.serve.protocol.oip_tensors import DATATYPES


def texts(*words: str | bytes) -> np.ndarray:
    """A BYTES tensor."""
    array = np.empty(len(words), object)
    array[:] = [word.encode() if isinstance(word, str) else word for word in words]
    return array


class Upper:
    """`text` BYTES [1] -> `upper`, its capitals, and `n`, its length, which is the length of the input too.

    `gate`, where it is cleared, holds answers back. `answered` collects what was asked.
    """

    max_length = 1000
    degree: Literal[1, 2] = 1

    def __init__(self, name: str = "upper", mark: str = "", identity: str = "upper") -> None:
        self.identity = identity
        self.endpoint: Endpoint = Whole(name, self._answer, self.max_length, self.degree)
        outputs = (Port("upper", "bytes", (1,)), Port("n", "int64", (1,)))
        self.signature = Signature(
            name, "test", (Port("text", "bytes", (1,)),), outputs, (frozenset({"text"}),)
        )
        self.gate = threading.Event()
        self.gate.set()
        self.answered: list[bytes] = []
        self.is_closed = False
        self._mark = mark.encode()

    def read(self, tensors: Tensors) -> Request:
        return Request(len(tensors["text"][0]), tensors=tensors)

    def _answer(self, request: Request) -> Tensors:
        text = request.tensors["text"][0]
        self.answered.append(text)
        assert self.gate.wait(60)
        if text == b"no":
            raise InputError("this text cannot be read.")
        if text == b"bug":
            raise ZeroDivisionError("a bug")
        return {"upper": texts(text.upper() + self._mark), "n": np.array([len(text)])}

    def sample(self, length: int) -> Tensors:
        return {"text": texts("a" * length)}

    def close(self) -> None:
        self.is_closed = True


class Echo:
    """One input of every datatype and open shape; what comes, goes back under the same name."""

    max_length = 1 << 21
    degree: Literal[1, 2] = 1
    identity = "echo"

    def __init__(self, only: Sequence[str] = tuple(DATATYPES)) -> None:
        self.endpoint: Endpoint = Whole("echo", self._answer, self.max_length, self.degree)
        ports = tuple(Port(dtype, dtype, (None, None)) for dtype in only)
        self.signature = Signature("echo", "test", ports, ports, (frozenset(only),))

    def read(self, tensors: Tensors) -> Request:
        return Request(next(iter(tensors.values())).size, tensors=tensors)

    def _answer(self, request: Request) -> Mapping[str, np.ndarray]:
        return {name: np.array(array) for name, array in request.tensors.items()}

    def sample(self, length: int) -> Tensors:
        raise InputError("there is none")

    def close(self) -> None:
        pass
