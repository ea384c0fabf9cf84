"""The engines that the conformance suite of comm runs on: each makes members that know each other."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from pliant.cluster.comm import Comm
from pliant.cluster.comm_memory import MemoryNetwork

Members = Callable[[Sequence[str]], dict[str, Comm]]


@contextmanager
def memory() -> Iterator[Members]:
    network = MemoryNetwork()
    made: list[Comm] = []

    def members(names: Sequence[str]) -> dict[str, Comm]:
        joined: dict[str, Comm] = {name: network.join(name) for name in names}
        made.extend(joined.values())
        return joined

    yield members
    for comm in made:
        comm.close()


ENGINES = {"memory": memory}
