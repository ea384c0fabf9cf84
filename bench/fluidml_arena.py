"""Algorithm 4 on whole models: the arena against separate tensors, the live bytes, and the optimum."""

import random
import time
from collections.abc import Sequence
from contextlib import suppress

import checkout  # noqa: F401 - research and testbed lie there
from pliant.compiler.executable.image import Image
from pliant.compiler.executable.place_tensors import ALIGNMENT, Lifetime, place_tensors
from pliant.errors import GraphError
from research.place_exact import place_exactly

LIMIT_S = 20.0
DRAWN = 8


def measure(subject: str, image: Image, limit_s: float = LIMIT_S) -> dict[str, object]:
    """A model's row; the optimum is searched only if the greedy arena exceeds the live bytes."""
    tensors = [t for t in image.tensors if t.n_bytes]
    apart, alive = sum(_rounded(t) for t in tensors), _alive_bytes(tensors)
    greedy = -(-image.arena_bytes // ALIGNMENT) * ALIGNMENT
    start = time.perf_counter()
    if greedy == alive:
        optimum, said = greedy, "greedy's, which is what is alive at once"
    else:
        try:
            found = place_exactly(tensors, limit_s).n_bytes
            optimum, said = -(-found // ALIGNMENT) * ALIGNMENT, f"HiGHS, {time.perf_counter() - start:.1f} s"
        except GraphError:
            optimum, said = alive, f"not proved in {limit_s:g} s: a bound, what is alive at once"
    return {
        "model": subject,
        "tensors": len(tensors),
        "each in its own place [MB]": apart / 1e6,
        "greedy by size [MB]": greedy / 1e6,
        "alive at once [MB]": alive / 1e6,
        "optimum [MB]": optimum / 1e6,
        "greedy / optimum": greedy / optimum,
        "proved by": said,
    }


def drawn(n: int, seed: int = 0) -> dict[str, object]:
    """A row of `n` random sets of DRAWN tensors: on models greedy may already be optimal, on these it is
    not.
    """
    chance = random.Random(seed)
    ratios = []
    for _ in range(n):
        tensors = [
            Lifetime(ALIGNMENT * chance.randint(1, 100), first, first + chance.randint(0, 5))
            for first in (chance.randint(0, 12) for _ in range(DRAWN))
        ]
        with suppress(GraphError):  # not proved in time
            ratios.append(place_tensors(tensors).n_bytes / place_exactly(tensors, LIMIT_S / 10).n_bytes)
    optimal = sum(ratio == 1.0 for ratio in ratios)
    return {
        "model": f"{len(ratios)} of {n} drawn sets",
        "tensors": DRAWN,
        "each in its own place [MB]": "",
        "greedy by size [MB]": "",
        "alive at once [MB]": "",
        "optimum [MB]": "",
        "greedy / optimum": f"1 in {optimal}, largest {max(ratios, default=1.0):.3f}",
        "proved by": f"HiGHS, those proved in {LIMIT_S / 10:g} s each",
    }


def _alive_bytes(tensors: Sequence[Lifetime]) -> int:
    steps = range(1 + max((t.last for t in tensors), default=0))
    return max(sum(_rounded(t) for t in tensors if t.first <= step <= t.last) for step in steps)


def _rounded(t: Lifetime) -> int:
    return -(-t.n_bytes // ALIGNMENT) * ALIGNMENT
