"""Every kind of session, and whether threads that share one get its answers.

As a program it asks each of them in turn from several threads, without the checks of shapes that pytest
installs, and prints a line `NAME: WHAT IS WRONG` for each.
"""

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pliant.errors import InputError
from pliant.run.session.session import Session
from tests.conformance.array_kinds import ARRAY_KINDS
from tests.conformance.cluster_kinds import CLUSTER_KINDS
from tests.conformance.session_kind import LENGTHS, SessionKind
from tests.conformance.text_kinds import TEXT_KINDS

KINDS = ARRAY_KINDS | TEXT_KINDS | CLUSTER_KINDS
N = len(LENGTHS)


def wrong_answers(kind: SessionKind, session: Session[Any], n_threads: int) -> list[object]:
    """What threads that ask `n_answers` times each get that one thread does not; errors too."""
    expected = kind.answers(session)
    assert len(set(expected)) == N
    wrong: list[object] = []

    def work(first: int) -> None:
        try:
            numbers = range(first, first + kind.n_answers)
            wrong.extend(
                n for n in numbers if kind.answer(session, n % len(LENGTHS)) != expected[n % len(LENGTHS)]
            )
        except Exception as error:  # noqa: BLE001 - the caller is told
            wrong.append(error)

    run_in_threads([lambda first=first: work(first) for first in range(n_threads)])  # type: ignore[misc]
    return wrong


def run_in_threads(works: list[Callable[[], None]]) -> None:
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


def find_accepted_invalid_calls(session: Session[Any]) -> list[object]:
    """What a call answers though it is no input, or refuses in another way than by InputError."""
    found: list[object] = []
    for value in (None, object(), {}, 7.5):
        try:
            found.append(session(value))
        except InputError:
            pass
        except Exception as error:  # noqa: BLE001 - the caller is told
            found.append(error)
    return found


if __name__ == "__main__":
    for _name, _kind in KINDS.items():
        with _kind.open(Path(sys.argv[1])) as _session:
            _found = wrong_answers(_kind, _session, int(sys.argv[2])) + find_accepted_invalid_calls(_session)
        print(f"{_name}: {_found[:5] or 'nothing'}", flush=True)
