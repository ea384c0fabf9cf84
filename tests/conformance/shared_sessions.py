"""Every kind of session that threads may share, opened small: asked by number, answering with bytes.

As a program it asks one of them from several threads, without the checks of shapes that pytest installs.
"""

import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pliant.api.open_cluster import Cluster
from pliant.cluster.net.key import new_key
from pliant.ir.device import DeviceProfile
from tests.run.conftest import paper_profile
from tests.tiny import tiny_spec, write_model

N_QUESTIONS = 6
"""Different inputs, of different lengths: an answer to another one is noticed."""
TEXTS = ("good", "bad film", "the story was not good", "a good movie and a bad plot", "it is no film", "not")


@dataclass(frozen=True)
class Shared:
    """An open session: `ask(i)` gives the answer to question i as bytes that compare exactly."""

    ask: Callable[[int], bytes]
    close: Callable[[], None]

    def answers(self) -> list[bytes]:
        return [self.ask(i) for i in range(N_QUESTIONS)]


@contextmanager
def opened(kind: str, folder: Path) -> Iterator[Shared]:
    """A session of one of KINDS; models and kernels are kept in `folder`, and found there again."""
    model = folder / "bert"
    if not model.exists():
        write_model(model, tiny_spec("bert", n_layers=2, widths=(2, 4)))
    shared = KINDS[kind](model, paper_profile(), folder)
    try:
        yield shared
    finally:
        shared.close()


def wrong_answers(shared: Shared, n_threads: int, n_answers: int) -> list[object]:
    """What `n_threads` threads that ask `n_answers` times each get that one thread does not; errors too."""
    expected = shared.answers()
    assert len(set(expected)) == N_QUESTIONS
    wrong: list[object] = []

    def work(first: int) -> None:
        try:
            numbers = range(first, first + n_answers)
            wrong.extend(n for n in numbers if shared.ask(n % N_QUESTIONS) != expected[n % N_QUESTIONS])
        except Exception as error:  # noqa: BLE001 - the caller is told
            wrong.append(error)

    in_threads([lambda first=first: work(first) for first in range(n_threads)])  # type: ignore[misc]
    return wrong


def in_threads(works: list[Callable[[], None]]) -> None:
    """Do all at once and wait for them; threads are switched often, so that they meet amid things."""
    threads = [threading.Thread(target=work) for work in works]
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval_s)


def _cluster(model: Path, profile: DeviceProfile, folder: Path) -> Shared:
    cluster = Cluster("127.0.0.1:0", key=new_key(), threads=1, shares="equal", cache=folder)
    session = cluster.open(model)
    return Shared(lambda i: session(TEXTS[i]).outputs["logits"].tobytes(), cluster.close)


KINDS: dict[str, Callable[[Path, DeviceProfile, Path], Shared]] = {
    "cluster": _cluster,
}

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made, opened(sys.argv[1], Path(made)) as one:
        found = wrong_answers(one, int(sys.argv[2]), int(sys.argv[3]))
        sys.exit(f"{len(found)} wrong: {found[:5]}" if found else 0)
