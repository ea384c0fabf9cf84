"""Schedules of one model, in one process: the candidates of each, whether the programs differ, and their
times.

Programs are compared byte for byte first: equal ones take equal time by construction. Different ones run
interleaved on one thread and are compared by its processor time, the unit of the cost table.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from statistics import median
from typing import Any, get_args

import numpy as np

from fluidml_models import Subject
from paired import paired
from pliant.api import compile_onnx as compiled
from pliant.compiler.executable.call import Target
from pliant.compiler.executable.encode_image import encode, image_kernels
from pliant.compiler.executable.image import Image, make_image
from pliant.compiler.layout.choose_layouts import WORTHWHILE_RATIO, choose_schedule
from pliant.compiler.layout.layout_forms import build_problem, measurement_keys, with_times
from pliant.ir.graph import Graph
from pliant.kernels.runtime.thread_pool import ThreadPool
from pliant.models.onnx.onnx_file import open_onnx
from pliant.profile.form_costs import CostFile
from pliant.run.array_sessions.onnx_session import OnnxSession
from pliant.run.graph.array_stage import open_image
from pliant.run.graph.model_options import ModelOptions
from pliant.run.graph.schedule_graph import GraphScheduler, ScheduleKind, ScheduleReport
from report import interleaved
from runtimes import THREADS

KINDS: tuple[ScheduleKind, ...] = get_args(ScheduleKind)
ORDERED = (("exact", "paper"), ("paper", "none"))
"""The first of each pair may never be slower than the second."""
CLAIMED = tuple(f"{a} / {b}" for a, b in ORDERED)


@dataclass(frozen=True, slots=True)
class Plan:
    """A model scheduled and lowered; `digest` is equal for equal programs."""

    graph: Graph
    image: Image
    digest: str
    report: ScheduleReport | None


def plan(subject: Subject, kind: ScheduleKind, cache: Path) -> Plan:
    """The program that a session of THREADS threads would run."""
    library, pool = compiled.shared_pool(THREADS, cache)
    model = OnnxSession(open_onnx(subject.file), pool, library, ModelOptions({}, schedule=kind), ahead=False)
    graph = model.graph(subject.arrays)
    image = make_image(graph, Target(library.isa, THREADS))
    return Plan(graph, image, _digest(image), model.schedule)


def measure(subject: Subject, cache: Path, rounds: int) -> dict[str, Any]:
    """Digests and reports by kind, and processor seconds of each distinct program."""
    plans = {kind: plan(subject, kind, cache) for kind in KINDS}
    first: dict[str, str] = {}
    for kind, made in plans.items():
        first.setdefault(made.digest, kind)
    runs = {kind: plans[kind].image for kind in first.values() if kind != "none"}
    return {
        "same as": {kind: first[made.digest] for kind, made in plans.items()},
        "reports": {kind: asdict(made.report) for kind, made in plans.items() if made.report},
        "processor_s": _processor(runs, subject.arrays, cache, rounds) if len(runs) > 1 else {},
    }


def rows(subject: str, found: Mapping[str, Any], wall: Mapping[str, list[float]]) -> list[dict[str, object]]:
    """The candidates of `paper` and `exact`, predicted and measured times (wall, median)."""
    table = []
    for kind in ("paper", "exact"):
        said = found["reports"][kind]
        seconds = wall.get(found["same as"][kind], [])
        table.append(
            {
                "model": subject,
                "schedule": kind,
                "edges": said["edges"],
                "candidates": said["candidates"],
                "edges with >= 3": said["choosable"],
                "sequences": said["sequences"],
                "conflicts": said["conflicts"],
                "edges turned": said["turned"],
                "reorders": said["reorders"],
                "predicted [ms]": 1e3 * said["predicted_s"],
                "default layouts [ms]": 1e3 * said["default_s"],
                "gain": 1.0 - said["predicted_s"] / said["default_s"],
                "median [ms]": 1e3 * median(seconds) if seconds else "",
                "planning [s]": said["planning_s"],
                "forms measured": said["measured"],
            }
        )
    return table


def comparison(
    subject: str, found: Mapping[str, Any], wall: Mapping[str, list[float]]
) -> list[dict[str, object]]:
    """exact / paper, paper / none, and the default schedule: identical, or ratios and intervals."""
    same, alone = found["same as"], found["processor_s"]
    table: list[dict[str, object]] = []
    for a, b in (*ORDERED, ("exact", "static")):
        x, y = same[a], same[b]
        row: dict[str, object] = {"model": subject, "ratio": f"{a} / {b}"}
        if x == y:
            table.append(row | {"programs": "identical", "processor": "", "wall": "", "above 1": "no"})
            continue
        ratios = [paired(alone[x], alone[y])] if x in alone and y in alone else []
        said = [str(r) for r in ratios] or ["not measured"]
        above = any(r.is_above for r in ratios)
        if wall.get(x) and len(wall.get(y, [])) == len(wall[x]):
            ratio = paired(wall[x], wall[y])
            said.append(str(ratio))
            above |= ratio.is_above
        elif wall.get(x) and wall.get(y):  # plain loops are run too rarely for an interval of pairs
            low, high = min(wall[x]) / max(wall[y]), max(wall[x]) / min(wall[y])
            said.append(f"{low:.4f} to {high:.4f} (all runs)")
            above |= low > 1.0
        else:
            said.append("not measured")
        made = {"programs": "differ", "processor": said[0], "wall": said[1]}
        table.append(row | made | {"above 1": "yes" if above else "no"})
    return table


def median_rows(subject: str, found: Mapping[str, Any]) -> list[dict[str, object]]:
    """The median processor time of each schedule's program on one thread; equal programs are run once."""
    if not found["processor_s"]:
        return []
    row: dict[str, object] = {"model": subject}
    for kind in ("paper", "exact", "static"):
        first = found["same as"][kind]
        taken = found["processor_s"].get(first)
        row[f"{kind} [ms]"] = f"= {first}" if first != kind else 1e3 * median(taken) if taken else "-"
    return [row]


def repeat(subject: Subject, cache: Path) -> dict[str, object]:
    """The cost table measured twice: the agreement of forms, and the exact choice's time by the other table.

    A schedule predicted below WORTHWHILE_RATIO of the default is used; its loss by the table that it was not
    chosen from shows the noise in predictions.
    """
    library, pool = compiled.shared_pool(THREADS, cache)
    options = ModelOptions({}, without=("channels_last",))
    graph = OnnxSession(open_onnx(subject.file), pool, library, options, ahead=False).graph(subject.arrays)
    tables = []
    for i in range(2):
        costs = CostFile(cache / "repeat" / f"{subject.file.stem}-{i}.json")
        costs.path.unlink(missing_ok=True)
        GraphScheduler("exact", pool, library, costs).make_problem(graph)
        tables.append(costs.load())
    bare = build_problem(graph)
    wanted = measurement_keys(graph, bare)
    problems = [with_times(bare, wanted, table) for table in tables]
    chosen = [choose_schedule(problem, "exact").layouts for problem in problems]
    promised = [[p.seconds(layouts) / p.seconds(p.default) for p in problems] for layouts in chosen]
    kept = [x for x in tables[0] if tables[0][x] > 0 and tables[1].get(x, 0.0) > 0]
    spread = np.abs([np.log(tables[0][x] / tables[1][x]) for x in kept])
    defaults = [p.seconds(p.default) for p in problems]
    return {
        "model": subject.name,
        "forms and reorders": len(kept),
        "median difference": float(np.median(spread)),
        "of nine in ten below": float(np.quantile(spread, 0.9)),
        "default's sum": abs(float(np.log(defaults[0] / defaults[1]))),
        "promised / default, own table": " and ".join(f"{promised[i][i]:.4f}" for i in (0, 1)),
        "by the other table": " and ".join(f"{promised[i][1 - i]:.4f}" for i in (0, 1)),
        "lost of the promise": max(promised[i][1 - i] - promised[i][i] for i in (0, 1)),
        "threshold": 1.0 - WORTHWHILE_RATIO,
    }


def _processor(
    images: Mapping[str, Image], feeds: Mapping[str, np.ndarray], cache: Path, rounds: int
) -> dict[str, list[float]]:
    """Processor seconds on one thread of programs divided for THREADS, interleaved."""
    library, _ = compiled.shared_pool(THREADS, cache)
    with ThreadPool(1, library) as pool:
        sessions = {kind: open_image(image, pool, library) for kind, image in images.items()}
        held = {
            kind: (dict(feeds), session.run({x: feeds[x] for x in session.program.inputs}))
            for kind, session in sessions.items()
        }

        def timed(kind: str) -> Callable[[], float]:
            def once() -> float:
                sessions[kind].repeat()
                start = time.thread_time()
                sessions[kind].repeat()
                return time.thread_time() - start

            return once

        seconds, _ = interleaved({kind: timed(kind) for kind in held}, rounds)
    return seconds


def _digest(image: Image) -> str:
    """A digest of the encoded program, its kernels' names (a name identifies one text), and all its
    weights.
    """
    found = sha256(repr(encode(image)).encode())
    found.update(repr(sorted(image_kernels(image))).encode())
    for name, array in sorted(image.constants.items()):
        found.update(name.encode() + np.ascontiguousarray(array).tobytes())
    for name, packed in sorted(image.packed.items()):
        memory = np.zeros(packed.n_bytes, np.uint8)
        packed.fill(memory)
        found.update(name.encode() + memory.tobytes())
    return found.hexdigest()
