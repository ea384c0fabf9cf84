"""Many clients at once, and an operator who meddles until the last of them has been answered."""

import threading
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count

from tests.conformance.session_kinds import run_in_threads


def crowd(asking: Sequence[Callable[[], None]], *meddling: Callable[[int], None]) -> None:
    """Do all of `asking`, each on a thread of its own, and each of `meddling` again and again until they end.

    Each of `meddling` gets the number of its calls so far, and is called at least once. The first error is
    raised.
    """
    errors: list[BaseException] = []
    left, ended = list(asking), threading.Event()

    def guarded(work: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - raised again where the crowd was asked for
                errors.append(error)
                ended.set()

        return run

    def counted(work: Callable[[], None]) -> None:
        try:
            work()
        finally:
            left.pop()
            if not left:
                ended.set()

    def again(work: Callable[[int], None]) -> None:
        for n in count():
            work(n)
            if ended.is_set():
                return

    works = [partial(counted, work) for work in asking] + [partial(again, work) for work in meddling]
    run_in_threads([guarded(work) for work in works])
    if errors:
        raise errors[0]
