"""What a kind of session is to the suite of facts: how it is opened, its inputs, and their answers."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pliant.run.session.session import Session

Feeds = Mapping[str, Any]
Arrays = dict[str, np.ndarray]
LENGTHS = (1, 4, 6, 7, 5, 2)
"""Of the inputs: an answer to another one is noticed."""
_N_IDS = 45


@dataclass(frozen=True)
class SessionKind:
    """A kind of session. `open` keeps its models and kernels in a folder, and finds them there again.

    `feeds` gives input i, `expected` its answer without pliant, or unsplit. `texts` are inputs as well.
    `ask` gives the answer to input i where that is more than a run of its feeds. `too_long` is one that
    the model cannot read, and what the error says of it. `exemptions` gives a reason for every fact that does
    not hold of it. Each of several threads asks for `n_answers`.
    """

    open: Callable[[Path], AbstractContextManager[Session[Any]]]
    feeds: Callable[[int], Feeds]
    expected: Callable[[Path, Feeds], Arrays]
    too_long: tuple[Feeds, str] | None = None
    texts: Sequence[str] = ()
    ask: Callable[[Session[Any], int], Arrays] | None = None
    exemptions: Mapping[str, str] = field(default_factory=dict)
    n_answers: int = 1000

    def answer(self, session: Session[Any], i: int) -> bytes:
        """The answer to input i, as bytes that compare exactly."""
        outputs = session.run(self.feeds(i)) if self.ask is None else self.ask(session, i)
        return b"".join(y.tobytes() if y.dtype != object else y[0] for y in outputs.values())

    def answers(self, session: Session[Any]) -> list[bytes]:
        return [self.answer(session, i) for i in range(len(LENGTHS))]


def row_of_ids(i: int) -> np.ndarray:
    """Tokens of input i, int64 [1, length]: words in every small vocabulary here."""
    return (5 + np.random.default_rng(i).integers(0, _N_IDS, LENGTHS[i]))[None]


def ids(i: int) -> Arrays:
    return {"ids": row_of_ids(i)}


def classified(logits: np.ndarray, *labels: str) -> Arrays:
    """The outputs of a text classifier."""
    label = np.empty(1, object)
    label[0] = labels[int(logits.argmax())].encode()
    return {"logits": logits[None], "label": label}


def write_once(path: Path, write: Callable[[Path], object]) -> Path:
    """`path`, written where it is not there yet."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path)
    return path
