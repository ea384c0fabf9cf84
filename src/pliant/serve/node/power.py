"""Power models of a node, from given figures or from its energy counters."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from itertools import cycle, islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from pliant.errors import NodeError, RouteError
from pliant.ir.endpoint import Request
from pliant.route.choice.energy import LTE, PowerModel, RadioModel
from pliant.route.choice.radio_use import RadioTail
from pliant.run.sample_runs import sampling
from pliant.run.session.session import Session
from pliant.serve.answers.answer_energy import AnswerEnergy
from pliant.serve.answers.samples import sample_requests
from pliant.system import EnergyMeter, find_meters

MEASURE = "measure"
_RADIOS = {LTE.name: LTE}
_MEASURE_S = 1.0
_SAMPLES = (8, 64)
"""Lengths of the sample inputs; the power is the same at every length."""


def read_power(text: str, served: Session[Any]) -> PowerModel:
    """Read `text`: watts, or `measure` for this machine's counters, idle and busy. Raises NodeError."""
    if text == MEASURE:
        return measure_power(find_meters(), sampling()(served.answer), sample_requests(served, _SAMPLES))
    return _read_watts(text, "this device")


def check_power(text: str) -> None:
    """Raise NodeError unless `text` is a number of watts, or `measure`."""
    if text != MEASURE:
        _read_watts(text, "this device")


def _read_watts(text: str, device: str) -> PowerModel:
    try:
        return PowerModel(device, 0.0, float(text), "given")
    except (ValueError, RouteError) as error:
        raise NodeError(
            f"for {device} a power of {text!r} is not a number of watts >= 0; give one, or {MEASURE!r} where "
            "the machine counts its joules (RAPL, hwmon)."
        ) from error


def read_energy(
    power: PowerModel | str | None,
    workers: Mapping[str, str],
    served: Session[Any],
    radio: RadioModel | str | None = None,
    worker_radios: Mapping[str, RadioModel | str] = MappingProxyType({}),
) -> AnswerEnergy:
    """Build the energy accounting from this device's `power`, and the watts of its `workers` by name.

    `radio` and `worker_radios` are those by which this device and workers exchange activations. With
    `measure`, the machine's counters are also read for each answer. Raises NodeError.
    """
    if isinstance(power, str):
        meters = find_meters() if power == MEASURE else ()
        power = read_power(power, served)
    else:
        meters = ()
    watts = {name: _read_watts(text, name) for name, text in workers.items()}
    tails = {name: RadioTail(as_radio(one)) for name, one in worker_radios.items()}
    return AnswerEnergy(power, meters, watts, None if radio is None else RadioTail(as_radio(radio)), tails)


def as_radio(radio: RadioModel | str) -> RadioModel:
    """A radio model, or the one that a text names. Raises NodeError."""
    return read_radio(radio) if isinstance(radio, str) else radio


def read_radio(text: str) -> RadioModel:
    """A radio model by name, or from a JSON file with the fields of `RadioModel`. Raises NodeError."""
    if text in _RADIOS:
        return _RADIOS[text]
    try:
        said = msgspec.json.decode(Path(text).read_bytes(), type=dict[str, str | float])
        model = msgspec.convert(said, RadioModel)
    except (OSError, msgspec.MsgspecError, RouteError) as error:
        raise NodeError(
            f"{text!r} is not a known radio ({', '.join(_RADIOS)}), and not a file of a radio model: "
            f"{str(error).removesuffix('.')}."
        ) from error
    known = [field.name for field in fields(RadioModel)]
    if more := said.keys() - set(known):
        raise NodeError(
            f"{text} has fields that no radio has: {', '.join(sorted(more))}. A radio has {', '.join(known)}."
        )
    return model


def measure_power(
    meters: Sequence[EnergyMeter],
    work: Callable[[Request], object],
    samples: Sequence[Request],
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> PowerModel:
    """Measure the power of all `meters`: idle for a second, and the increase while samples run.

    Raises NodeError if there is no meter.
    """
    if not meters:
        raise NodeError(
            "this machine has no readable energy counter (on Linux RAPL, often for root alone, or hwmon); "
            "give its watts as a number."
        )

    def work_on() -> None:
        start_s, turns = clock(), cycle(samples)
        while clock() - start_s < _MEASURE_S:
            for sample in islice(turns, len(samples)):
                work(sample)

    def watts(act: Callable[[], None]) -> float:
        before, start_s = [m.read_uj() for m in meters], clock()
        act()
        took_s = clock() - start_s
        spent_j = sum(m.joules(uj, m.read_uj()) for m, uj in zip(meters, before, strict=True))
        return spent_j / took_s

    idle_w = watts(lambda: sleep(_MEASURE_S))
    return PowerModel(
        "this device", idle_w, max(watts(work_on) - idle_w, 0.0), ", ".join(m.name for m in meters)
    )
