"""Poisson requests to two unequal replicas, by the router of `pliant.ray` and Ray's default, interleaved."""

import asyncio
import random
from collections.abc import Sequence
from statistics import median, quantiles
from typing import Any

from ray import serve
from ray.serve.config import RequestRouterConfig

from pliant.ir.dilation import Dilation
from pliant.ray import Deployment
from report import Report

SLOWER = 4.0
LOADS, CHARACTERS = (0.3, 0.5, 0.7), 800
"""Loads as fractions of both replicas' capacity, and the characters of a text that are sent."""
_OURS, _RAYS = "pliant", "Ray's default"
_AT_ONCE, _FOR_S = 16, 3.0


def routed(report: Report, model: str, texts: Sequence[str], rounds: int, for_s: float) -> float:
    """The worst ratio of the 95th percentiles, ours to Ray's default's, over all loads."""
    sent = [text[:CHARACTERS] for text in texts]
    handles = {
        _OURS: _deployed(model, "pliant", {}),
        _RAYS: _deployed(model, "ray", {"request_router_config": RequestRouterConfig()}),
    }
    for _ in range(2):  # warm-up: replicas and routers have few measurements at first
        rates = {name: asyncio.run(_saturated(handle, sent)) for name, handle in handles.items()}
    capacity, rows, ratios = rates[_RAYS], [], []
    for load in LOADS:
        found: dict[str, list[list[float]]] = {name: [] for name in handles}
        for seed in range(rounds):
            for name in list(handles)[:: 1 if seed % 2 == 0 else -1]:
                found[name].append(asyncio.run(_asked(handles[name], sent, load * capacity, for_s, seed)))
        every = {name: [seconds for one in each for seconds in one] for name, each in found.items()}
        p95_s = {name: _p95(seconds) for name, seconds in every.items()}
        ratios.append(p95_s[_OURS] / p95_s[_RAYS])
        rows += [
            {"load": load, "requests/s": load * capacity, "router": name, "answers": len(every[name]),
             "median ms": 1e3 * median(every[name]), "p95 ms": 1e3 * p95_s[name],
             "p95 ms by round": ", ".join(f"{1e3 * _p95(one):.0f}" for one in each),
             "of the default's p95": p95_s[name] / p95_s[_RAYS]}
            for name, each in found.items()
        ]  # fmt: skip
    report.table(f"Two replicas of {model}, one {SLOWER:g} times slower, {CHARACTERS} characters", rows)
    report.note(
        f"Loads are fractions of the {capacity:.0f} answers per second that both replicas give with "
        f"{_AT_ONCE} concurrent requests by Ray's default router ({rates[_OURS]:.0f} by pliant's). Requests "
        "are a Poisson process, the same for both routers, and times count from the scheduled arrival. "
        "Clients, routers and replicas share two cores."
    )
    return max(ratios)


def _by_rank(context: Any) -> dict[str, Any]:
    """One device, and one that takes four times as long."""
    return {"dilation": Dilation(SLOWER if context.rank.rank else 1.0), "threads": 1}


def _deployed(model: str, name: str, config: dict[str, Any]) -> Any:
    two = Deployment.options(num_replicas=2, ray_actor_options={"num_cpus": 0.4}, **config)
    app = two.bind(model, per_replica=_by_rank)
    return serve.run(app, name=name, route_prefix=f"/{name}")


def _p95(seconds: Sequence[float]) -> float:
    return quantiles(seconds, n=20)[-1]


async def _saturated(handle: Any, texts: Sequence[str]) -> float:
    """Answers per second to closed-loop clients."""
    loop, n = asyncio.get_running_loop(), 0
    start_s = loop.time()

    async def client(i: int) -> None:
        nonlocal n
        chance = random.Random(i)
        while loop.time() - start_s < _FOR_S:
            await handle.answer.remote(chance.choice(texts))
            n += 1

    await asyncio.gather(*(client(i) for i in range(_AT_ONCE)))
    return n / (loop.time() - start_s)


async def _asked(handle: Any, texts: Sequence[str], rate: float, for_s: float, seed: int) -> list[float]:
    """Seconds of each answer to Poisson requests at `rate` per second."""
    chance, loop, tasks = random.Random(seed), asyncio.get_running_loop(), []
    start_s, at_s = loop.time(), 0.0

    async def ask(text: str, due_s: float) -> float:
        await handle.answer.remote(text)
        return loop.time() - due_s

    while (at_s := at_s + chance.expovariate(rate)) < for_s:
        await asyncio.sleep(max(0.0, start_s + at_s - loop.time()))
        tasks.append(loop.create_task(ask(chance.choice(texts), start_s + at_s)))
    return list(await asyncio.gather(*tasks))
