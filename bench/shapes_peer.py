"""One runtime with new shapes, two threads, in a separate process (see bench/shapes.py).

`python bench/shapes_peer.py RUNTIME FILE` reads a line of JSON for each turn: `{"lengths": [...]}` are texts,
`{"past": rows, "steps": n}` are a decoder's steps after a new past of that many rows. It prints the seconds
of each call, including compiling; with `"out": PATH` it saves the last answer there.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from runtimes import THREADS

Feeds = Mapping[str, np.ndarray]
Run = Callable[[Feeds], dict[str, np.ndarray]]


def _pliant(path: Path) -> Run:
    import pliant

    return pliant.compile(path, threads=THREADS).run


def _onnxruntime(path: Path) -> Run:
    import onnxruntime

    chosen = onnxruntime.SessionOptions()
    chosen.intra_op_num_threads, chosen.inter_op_num_threads = THREADS, 1
    chosen.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), chosen, providers=["CPUExecutionProvider"])
    names = [port.name for port in session.get_outputs()]
    return lambda feeds: dict(zip(names, session.run(names, dict(feeds)), strict=True))


RUNTIMES: dict[str, Callable[[Path], Run]] = {"pliant": _pliant, "onnxruntime": _onnxruntime}


def _texts(run: Run, lengths: list[int], seconds: list[float]) -> dict[str, np.ndarray]:
    answers: dict[str, np.ndarray] = {}
    for n in lengths:
        ids = np.random.default_rng(n).integers(1000, 30000, (1, n))
        feeds = {"ids": ids, "mask": np.ones_like(ids)}
        start_s = time.perf_counter()
        answers = run(feeds)
        seconds.append(time.perf_counter() - start_s)
    return answers


def _steps(run: Run, past: Mapping[str, np.ndarray], n: int, seconds: list[float]) -> dict[str, np.ndarray]:
    """A decoder's steps: the output `present` is the next step's `past`."""
    answers: dict[str, np.ndarray] = {}
    held = dict(past)
    for i in range(n):
        feeds = {"ids": np.array([[7 * i % 1000]]), **held}
        start_s = time.perf_counter()
        answers = run(feeds)
        seconds.append(time.perf_counter() - start_s)
        held = {x: answers[x.replace("past", "present", 1)] for x in held}
    return answers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runtime", choices=RUNTIMES)
    parser.add_argument("file", type=Path)
    opts = parser.parse_args()
    run = RUNTIMES[opts.runtime](opts.file)
    print("ready", flush=True)
    for line in sys.stdin:
        turn = json.loads(line)
        seconds: list[float] = []
        if "lengths" in turn:
            answers = _texts(run, turn["lengths"], seconds)
        else:
            with np.load(turn["feeds"]) as stored:
                past = {x: stored[x] for x in stored.files}
            answers = _steps(run, past, turn["steps"], seconds)
        if "out" in turn:
            np.save(turn["out"], next(iter(answers.values())))
        print(json.dumps(seconds), flush=True)


if __name__ == "__main__":
    main()
