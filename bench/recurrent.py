"""Recurrent models: outputs against torch, time by length, batches, time against onnxruntime and torch.

    python bench/recurrent.py [--quick]

Layers are timed from word vectors to all states, batch 1; whole models from word ids to the answer. CoVe's
shapes have random weights.
"""

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import geometric_mean, median
from tempfile import TemporaryDirectory

import numpy as np
import onnxruntime
import torch

import pliant
from paired import paired
from pliant.ir.endpoint import Request
from pliant.models.recurrent.recurrent_source import RecurrentSource
from pliant.run.array_sessions.recurrent_session import RecurrentSession
from report import Report, interleaved, options

MODELS = ("imdb-lstm", "random:cove-300", "random:cove-200", "random:gru-300")
LENGTHS = (1, 2, 5, 10, 20, 35, 50, 75, 100, 130, 165, 200, 250, 300, 350, 400)
CHECKED = (1, 2, 17, 64, 200, 400)
BESIDE = (10, 40, 200)
THREADS = (1, 2)
BATCHES, SHORTEST, LONGEST = (16, 64), 20, 400
TOLERANCE, STRAIGHT = 1e-5, 0.98


@dataclass(frozen=True, slots=True)
class TimeLine:
    """Seconds = `fixed_s` + `step_s` * words, by least squares over medians; R² of these and of all runs."""

    fixed_s: float
    step_s: float
    r2: float
    r2_of_runs: float


def main() -> None:
    chosen = options(__doc__.splitlines()[0])
    rounds, beside = (5, 3) if chosen.quick else (30, 15)
    bench = Report(
        "recurrent",
        f"batch 1, float32, one and two threads; lengths {LENGTHS[0]} to {LENGTHS[-1]}, a new order in each "
        f"of {rounds} rounds; runtimes in turns, {beside} rounds, each run behind one that is not timed",
        chosen,
    )
    bench.note(
        "imdb-lstm is the trained model that ships with pliant; the others have random weights. R² is of a "
        "line through the median time at each length, and of one through all runs."
    )
    models = {n: {name: pliant.open(name, threads=n) for name in MODELS} for n in THREADS}
    _outputs(bench, models[1])
    straight = [_lengths(bench, models[n], n, rounds) for n in THREADS]
    bench.claim("crime.linear", min(straight), f"R² >= {STRAIGHT} in every model", min(straight) >= STRAIGHT)
    gains = [_batches(bench, models[n], n, beside) for n in THREADS]
    bench.claim("recurrent.batches", min(gains), "texts a second >= 1.0 of one at a time", min(gains) >= 1.0)
    with TemporaryDirectory() as folder:
        ratios = [_beside(bench, models[n], Path(folder), n, beside) for n in THREADS]
    mean = geometric_mean(ratios)
    bench.claim("recurrent.onnxruntime", mean, "<= 1.0 of onnxruntime, geometric mean", mean <= 1.0)
    bench.finish()


def _outputs(bench: Report, models: Mapping[str, RecurrentSession]) -> None:
    rows, worst = [], 0.0
    for name, model in models.items():
        states = answers = 0.0
        layers = _torchs_layers(model.source)
        for n in CHECKED:
            ids = _words(model, n)
            x = model.source.look_up(ids)
            tensor = torch.from_numpy(x)[:, None]
            with torch.no_grad():
                want = np.asarray(layers(tensor)[0][:, 0])
            states = max(states, float(np.abs(model.states(x) - want).max()))
            (got,), wanted = _numbers(model, ids), _torchs_answer(model.source, layers, tensor)
            answers = max(answers, float(np.abs(got - wanted).max()))
        worst = max(worst, states, answers)
        spec = model.spec
        kind = f"{spec.n_layers} x {spec.directions} x {spec.hidden} {spec.cell}"
        rows.append({"model": name, "layers x directions x units": kind, "states": states, "answer": answers})
    bench.table(f"Largest difference from torch, lengths {', '.join(map(str, CHECKED))}", rows)
    bench.claim("crime.outputs", worst, f"<= {TOLERANCE:g} of torch", worst <= TOLERANCE)


def _torchs_layers(source: RecurrentSource) -> torch.nn.Module:
    """torch's layers with the source's weights."""
    spec = source.spec
    kind = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}[spec.cell]
    layers = kind(spec.inputs, spec.hidden, num_layers=spec.n_layers, bidirectional=spec.is_bidirectional)
    named = {name.removeprefix("rnn."): w for name, w in source.weights.items() if name.startswith("rnn.")}
    layers.load_state_dict({name: torch.from_numpy(w.copy()) for name, w in named.items()})
    return layers.eval()


def _torchs_answer(source: RecurrentSource, layers: torch.nn.Module, x: torch.Tensor) -> np.ndarray:
    """Logits, or the pooled vector."""
    with torch.no_grad():
        states, last = layers(x)
        last = last[0] if source.spec.cell == "lstm" else last
        found = {
            "last": last[-source.spec.directions :].reshape(-1),
            "max": states[:, 0].amax(0),
            "mean": states[:, 0].mean(0),
        }
        pooled = torch.cat([found[pooling] for pooling in source.spec.pooling])
        if source.spec.labels is not None:
            w, b = (torch.from_numpy(source.weights[f"classifier.{x}"]) for x in ("weight", "bias"))
            pooled = w @ pooled + b
    return np.asarray(pooled)


def _lengths(bench: Report, models: Mapping[str, RecurrentSession], threads: int, rounds: int) -> float:
    """The tables of T(n); the least R² of the medians."""
    rows, worst = [], 1.0
    medians: dict[str, np.ndarray] = {}
    for name, model in models.items():
        seconds = _times(model, rounds)
        line, medians[name] = _line(seconds), np.median(seconds, axis=0)
        worst = min(worst, line.r2)
        rows.append(
            {
                "model": name,
                "fixed µs": 1e6 * line.fixed_s,
                "µs a word": 1e6 * line.step_s,
                "R² of medians": f"{line.r2:.4f}",
                "R² of all runs": f"{line.r2_of_runs:.4f}",
                "largest miss of the line": f"{100 * _miss(line, medians[name]):.1f} %",
            }
        )
    bench.table(f"T(n), from word numbers to the answer, threads: {threads}", rows)
    by_length = [
        {"words": n, **{f"{name} ms": 1e3 * float(medians[name][i]) for name in models}}
        for i, n in enumerate(LENGTHS)
    ]
    bench.table(f"Median time by length, threads: {threads}", by_length)
    return worst


def _times(model: RecurrentSession, rounds: int) -> np.ndarray:
    """Seconds [round, length], lengths in a new order every round."""
    random = np.random.default_rng(0)
    seconds = np.zeros((rounds, len(LENGTHS)))
    inputs = [{"ids": _words(model, n)[None]} for n in LENGTHS]
    for feeds in inputs:
        model.run(feeds)
    for row in seconds:
        for i in random.permutation(len(LENGTHS)):
            row[i] = _seconds(partial(model.run, inputs[i]))
    return seconds


def _line(seconds: np.ndarray) -> TimeLine:
    n = np.array(LENGTHS, float)
    medians = np.median(seconds, axis=0)
    step_s, fixed_s = np.polyfit(n, medians, 1)
    every = np.broadcast_to(n, seconds.shape).ravel()
    of_runs = np.polyval(np.polyfit(every, seconds.ravel(), 1), every)
    r2 = _r2(medians, fixed_s + step_s * n)
    return TimeLine(float(fixed_s), float(step_s), r2, _r2(seconds.ravel(), of_runs))


def _r2(measured: np.ndarray, fitted: np.ndarray) -> float:
    return 1 - float(((measured - fitted) ** 2).sum() / ((measured - measured.mean()) ** 2).sum())


def _miss(line: TimeLine, medians: np.ndarray) -> float:
    """The largest deviation from the line, for lengths from 10 on: below, the fixed part dominates the
    time.
    """
    kept = [i for i, n in enumerate(LENGTHS) if n >= 10]
    fitted = line.fixed_s + line.step_s * np.array(LENGTHS, float)
    return float(np.abs(fitted[kept] / medians[kept] - 1).max())


def _batches(bench: Report, models: Mapping[str, RecurrentSession], threads: int, rounds: int) -> float:
    """The table of several texts in one run, of log-normal lengths; the smallest gain in throughput."""
    random = np.random.default_rng(0)
    rows, gains = [], []
    for name, model in models.items():
        for n in BATCHES:
            lengths = np.clip(random.lognormal(5.1, 0.6, n), SHORTEST, LONGEST).astype(int)
            requests = [model.request({"ids": _words(model, k)[None]}) for k in lengths]
            functions: dict[str, Callable[[], object]] = {
                "one at a time": partial(_one_by_one, model, requests),
                "together": partial(model.answers, requests),
            }
            seconds = _in_turns(functions, rounds, threads)
            gains.append(paired(seconds["one at a time"], seconds["together"]))
            each = {way: f"{n / median(times):.0f}" for way, times in seconds.items()}
            rows.append(
                {"model": name, "texts": n, "words": int(lengths.sum()), **each, "gain": str(gains[-1])}
            )
    words = f"{SHORTEST} to {LONGEST} words"
    bench.table(f"Texts of {words} in one run: texts a second, and the gain, threads: {threads}", rows)
    return min(gain.value for gain in gains)


def _one_by_one(model: RecurrentSession, requests: Sequence[Request]) -> None:
    for request in requests:
        model.answer(request)


def _beside(
    bench: Report, models: Mapping[str, RecurrentSession], folder: Path, threads: int, rounds: int
) -> float:
    """The table of runtimes; the geometric mean of pliant's ratios to onnxruntime."""
    torch.set_num_threads(threads)
    rows, ratios = [], []
    for name, model in models.items():
        layers = _torchs_layers(model.source)
        file = _exported(layers, model, folder / f"{name.replace(':', '-')}.onnx")
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = threads
        theirs = onnxruntime.InferenceSession(str(file), settings, providers=["CPUExecutionProvider"])
        compiled = pliant.compile(file, threads=threads)
        for n in BESIDE:
            x = model.source.look_up(_words(model, n))
            feeds = {"x": x[:, None].copy()}
            functions: dict[str, Callable[[], object]] = {
                "pliant": partial(model.states, x),
                "pliant, ONNX": partial(compiled.run, feeds),
                "onnxruntime": partial(theirs.run, None, feeds),
                "torch": partial(layers, torch.from_numpy(x)[:, None]),
            }
            seconds = _in_turns(functions, rounds, threads)
            cells = {runtime: f"{1e6 * median(times) / n:.1f}" for runtime, times in seconds.items()}
            beside = {peer: paired(seconds["pliant"], seconds[peer]) for peer in ("onnxruntime", "torch")}
            ratios.append(beside["onnxruntime"].value)
            rows.append(
                {"model": name, "words": n, **cells, **{f"pliant / {p}": str(r) for p, r in beside.items()}}
            )
    bench.table(f"µs a word, and ratios of pliant to its peers (below 1 is faster), threads: {threads}", rows)
    return geometric_mean(ratios)


def _in_turns(
    functions: Mapping[str, Callable[[], object]], rounds: int, threads: int
) -> dict[str, list[float]]:
    """Seconds of every function, each after an untimed run."""
    pause_s = 0.0 if threads == 1 else 0.02  # peers' threads spin for a while after their work

    def timed(run: Callable[[], object]) -> float:
        time.sleep(pause_s)
        run()
        return _seconds(run)

    with torch.inference_mode():
        seconds, _ = interleaved({name: partial(timed, run) for name, run in functions.items()}, rounds)
    return seconds


def _exported(layers: torch.nn.Module, model: RecurrentSession, file: Path) -> Path:
    example = torch.zeros(5, 1, model.spec.inputs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            layers,
            (example,),
            str(file),
            input_names=["x"],
            dynamic_axes={"x": {0: "words"}},
            opset_version=17,
            dynamo=False,
        )
    return file


def _numbers(model: RecurrentSession, ids: np.ndarray) -> np.ndarray:
    """Logits or the vector, float32 [1, numbers]."""
    return model.run({"ids": ids[None]})[model.outputs[0].name]


def _words(model: RecurrentSession, n: int) -> np.ndarray:
    return np.random.default_rng(n).integers(0, model.spec.vocab, n).astype(np.int32)


def _seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
