"""FluidML's evaluation (section 5): schedules, operators, votes against the optimum, memory, allocations.

Models are built from transformers' configs and torch with random weights and a fixed seed. `none` has default
layouts and plain i-j-k loops from the same generator. ONNX-MLIR, the paper's baseline, has no package to
install; TVM's tables are its alone.
"""

import argparse
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np

from report import Report, interleaved, options

THREADS = 2
KINDS = ("none", "paper", "exact")
TOLERANCE = 1.03
"""Two schedules count as equal within this ratio of minima: medians of one schedule differ as much."""

PAPER_LOSS = {"a": 0.17, "b": 0.09}


def main() -> None:
    opts = options(__doc__ or "", _own_options)
    if opts.child:
        print(json.dumps(_child(opts.child, opts.model)))
        return
    report = Report("fluidml", f"batch 1, 128 tokens or one 224 x 224 image, {THREADS} threads, fp32", opts)
    with TemporaryDirectory() as folder:
        files = _models(Path(opts.models or folder), opts.quick, opts.only.split(",") if opts.only else None)
        _schedules(report, files, opts.quick)
        _heuristic(report, opts.quick)
        _operators(report, files, opts.quick)
        _memory(report, files, opts.quick)
    _items(report)
    report.finish()


def _own_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--models", metavar="DIR", help="where exported models are kept")
    parser.add_argument("--only", help="names of models, separated by commas")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--model", help=argparse.SUPPRESS)


def _models(folder: Path, quick: bool, only: list[str] | None) -> dict[str, Path]:
    """Name -> ONNX file, exported where it does not exist."""
    # Here, not above: processes whose memory is measured must not load torch.
    import text_models
    import vision_models

    if quick:
        small = text_models.TextModel("BERT", 2, 128, 4, 64, 2000)
        return {"BERT (2 layers of 128)": text_models.export(small, folder / "small.onnx")}
    texts = {
        "BERT": text_models.BERT,
        "GPT-NeoX": text_models.GPT_NEOX,
        "I-BERT": text_models.IBERT,
        "ConvBERT": text_models.CONVBERT,
    }
    files = {}
    for name, model in texts.items():
        path = folder / f"{name.lower().replace('-', '')}.onnx"
        if only is None or name in only:
            files[name] = path if path.exists() else text_models.export(model, path)
    for name, key in (("VGG-16", "vgg16"), ("ResNet-50", "resnet50")):
        if only is None or name in only:
            files[name] = vision_models.export(key, folder / f"{key}.onnx")
    return files


def _schedules(report: Report, files: dict[str, Path], quick: bool) -> None:
    """Table 2, and what each schedule chose from."""
    rows, chosen = [], []
    ordered = True
    for name, path in files.items():
        runs, sessions = _runs(path, quick)
        once = runs.pop("none")
        seconds, _ = interleaved(runs, 3 if quick else 7)
        alone = _processor(path, 40 if quick else 7)
        best = {"none": once()} | {kind: min(s) for kind, s in seconds.items()}
        rows.append(
            {"model": name}
            | {f"{kind} [ms]": 1e3 * s for kind, s in best.items()}
            | {
                **{f"{kind}, one thread [processor ms]": 1e3 * s for kind, s in alone.items()},
                "none / exact": best["none"] / best["exact"],
                "exact / ort": best["exact"] / best["onnxruntime"],
            }
            | {"largest difference from ort": _difference(sessions)}
        )
        ordered &= alone["exact"] <= TOLERANCE * alone["paper"] and best["paper"] <= TOLERANCE * best["none"]
        for kind in ("paper", "exact"):
            said = sessions[kind].schedule
            chosen.append(
                {
                    "model": name,
                    "schedule": kind,
                    "edges": said.edges,
                    "candidates": said.candidates,
                    "edges with >= 3": said.choosable,
                    "sequences": said.sequences,
                    "conflicts": said.conflicts,
                    "edges turned": said.turned,
                    "reorders": said.reorders,
                    "predicted [ms]": 1e3 * said.predicted_s,
                    "default layouts [ms]": 1e3 * said.default_s,
                    "gain": said.gain,
                    "measured [ms]": 1e3 * best[kind],
                    "planning [s]": said.planning_s,
                    "forms measured": said.measured,
                }
            )
    report.table("Table 2: least time of a run, interleaved (none: one run)", rows)
    report.table("What schedules chose from, predicted beside measured", chosen)
    report.claim(
        "compile.schedule",
        f"{len(rows)} models",
        f"exact <= paper <= none, each within {TOLERANCE}",
        ordered,
        "exact and paper by one thread's processor time: other processes do not count in it",
    )


def _processor(path: Path, rounds: int) -> dict[str, float]:
    """Least processor seconds of a run on one thread, `paper` and `exact` in turns."""
    from pliant import compiled

    sessions = {kind: compiled.compile(path, schedule=kind, threads=1) for kind in ("paper", "exact")}
    feeds = _feeds(sessions["exact"])

    def timed(session: object) -> Callable[[], float]:
        def once() -> float:
            start = time.thread_time()
            session.run(feeds)
            return time.thread_time() - start

        return once

    seconds, _ = interleaved({kind: timed(session) for kind, session in sessions.items()}, rounds)
    return {kind: min(s) for kind, s in seconds.items()}


def _runs(path: Path, quick: bool) -> tuple[dict[str, Callable[[], float]], dict[str, object]]:
    """A timed run of each schedule and of onnxruntime, all on the same feeds."""
    from pliant import compiled
    from pliant.evaluate.peers import open_peer

    sessions: dict[str, object] = {
        kind: compiled.compile(path, schedule=kind, threads=THREADS) for kind in (*KINDS, "static")
    }
    feeds = _feeds(sessions["exact"])
    peer = open_peer("onnxruntime", path, THREADS)

    def timed(run: Callable[[dict[str, np.ndarray]], object]) -> Callable[[], float]:
        def once() -> float:
            start = time.perf_counter()
            run(feeds)
            return time.perf_counter() - start

        return once

    runs = {kind: timed(session.run) for kind, session in sessions.items()}
    runs["onnxruntime"] = timed(peer)
    for kind in ("paper", "exact", "static", "onnxruntime"):
        runs[kind]()
    sessions["difference"] = (sessions["exact"].run(feeds), peer(feeds))
    return runs, sessions


def _difference(sessions: dict[str, object]) -> float:
    ours, theirs = sessions["difference"]
    return max(float(np.abs(ours[y] - theirs[y]).max()) for y in ours)


def _feeds(session: object) -> dict[str, np.ndarray]:
    from pliant import compiled

    feeds = compiled.sample_feeds(session.inputs)
    rng = np.random.default_rng(0)
    if "ids" in feeds:
        feeds["ids"] = rng.integers(1000, 1999, feeds["ids"].shape)
    return feeds


def _heuristic(report: Report, quick: bool) -> None:
    """Table 3: a chain and a branched graph, three layouts an edge, forms measured; all assignments tried."""
    from pliant.compile.schedule.exact import choose_exactly
    from pliant.compile.schedule.problem import brute_force
    from pliant.compile.schedule.vote import choose_by_vote

    rows = []
    worst = {"a": 0.0, "b": 0.0}
    for which, problem in (("a", _linear()), ("b", _branched())):
        best_s, _ = brute_force(problem)
        votes = [choose_by_vote(problem, seed).seconds for seed in range(5)]
        exact = choose_exactly(problem).seconds
        worst[which] = max(votes) / best_s - 1.0
        rows.append(
            {
                "model": f"({which}) {'linear' if which == 'a' else 'branched'}",
                "operators": len(problem.operators),
                "default [ms]": 1e3 * problem.seconds(problem.default),
                "brute force [ms]": 1e3 * best_s,
                "paper's votes, worst of 5 seeds [ms]": 1e3 * max(votes),
                "exact [ms]": 1e3 * exact,
                "loss of votes": worst[which],
                "loss in the paper": PAPER_LOSS[which],
            }
        )
    losses = _random_losses(200 if quick else 1000)
    rows.append(
        {
            "model": f"{len(losses)} random branched graphs (drawn times)",
            "operators": 8,
            "default [ms]": "",
            "brute force [ms]": "",
            "paper's votes, worst of 5 seeds [ms]": "",
            "exact [ms]": "",
            "loss of votes": f"median {median(losses):.3f}, largest {max(losses):.3f}",
            "loss in the paper": "",
        }
    )
    report.table("Table 3: votes against all assignments", rows)
    report.claim(
        "compile.schedule.heuristic",
        f"a {worst['a']:.3f}, b {worst['b']:.3f}",
        "printed beside the paper's 0.17 and 0.09",
        True,
    )


def _measured(graph: object) -> object:
    """The priced problem of a graph: three layouts an edge are asserted."""
    from pliant import compiled
    from pliant.run.schedule import Planner

    library, pool = compiled.shared_pool(THREADS)
    problem = Planner("exact", pool, library).problem(graph)
    inner = [e for e in problem.edges if e not in graph.inputs and e not in graph.outputs]
    assert all(len(problem.layouts[e]) >= 3 for e in inner), problem.layouts
    return problem


def _linear() -> object:
    """Convolutions and poolings in a row."""
    from pliant.ir.graph import Graph, Node, TensorType

    rng = np.random.default_rng(0)
    nodes, types, constants = [], {"x": TensorType("float32", (1, 16, 48, 80))}, {}
    x, channels, image = "x", 16, (48, 80)
    for i, outs in enumerate((32, 32, 48, 64, 24)):
        kernel = 3 if i % 2 == 0 else 1
        w = rng.standard_normal((outs, channels, kernel, kernel)).astype(np.float32)
        constants[f"w{i}"], types[f"w{i}"] = w, TensorType("float32", w.shape)
        pads = (kernel // 2,) * 4
        nodes.append(Node("Conv", (x, f"w{i}"), (f"c{i}",), {"pads": pads}))
        types[f"c{i}"] = TensorType("float32", (1, outs, *image))
        x, channels = f"c{i}", outs
        if i in (1, 3):
            image = (image[0] // 2, image[1] // 2)
            nodes.append(Node("MaxPool", (x,), (f"p{i}",), {"kernel_shape": (2, 2), "strides": (2, 2)}))
            types[f"p{i}"] = TensorType("float32", (1, outs, *image))
            x = f"p{i}"
    return _measured(Graph(tuple(nodes), ("x",), (x,), types, constants))


def _branched() -> object:
    """Two branches of products of three dimensions, joined by a sum and a concatenation."""
    from pliant.ir.graph import Graph, Node, TensorType

    shape = (64, 64, 64)
    f = [
        Node("Transpose", ("x",), ("a",), {"perm": (1, 0, 2)}),
        Node("MatMul", ("a", "y"), ("b",)),
        Node("Softmax", ("b",), ("c",), {"axis": 1}),
        Node("MatMul", ("y", "a"), ("d",)),
        Node("Transpose", ("d",), ("e",), {"perm": (1, 0, 2)}),
        Node("Add", ("c", "e"), ("g",)),
        Node("MatMul", ("g", "c"), ("h",)),
        Node("Concat", ("h", "e"), ("z",), {"axis": 1}),
    ]
    types = {x: TensorType("float32", shape) for x in "xyabcdegh"}
    types["z"] = TensorType("float32", (64, 128, 64))
    return _measured(Graph(tuple(f), ("x", "y"), ("z",), types))


def _random_losses(n: int) -> list[float]:
    """How much votes lose on graphs whose times are drawn."""
    from pliant.compile.schedule.exact import choose_exactly
    from pliant.compile.schedule.problem import Form, Operator, Problem
    from pliant.compile.schedule.vote import choose_by_vote

    layouts = ("row", "column", "panel")
    losses = []
    for seed in range(n):
        chance = random.Random(seed)
        edges, operators = ["in"], []
        for i in range(8):
            inputs = tuple(chance.sample(edges[-3:], min(len(edges), chance.choice((1, 2)), 3)))
            keys = {tuple(chance.choice(layouts) for _ in range(len(inputs) + 1)) for _ in range(8)}
            keys.add(("row",) * (len(inputs) + 1))
            forms = tuple(Form(k[:-1], k[-1:], chance.uniform(1.0, 5.0)) for k in sorted(keys))
            operators.append(Operator(f"o{i}", inputs, (f"e{i}",), forms))
            edges.append(f"e{i}")
        read = {e for o in operators for e in o.inputs}
        options_ = {e: layouts if e in read and e != "in" else ("row",) for e in edges}
        reorder = {e: {(a, b): 1.5 for a in layouts for b in layouts if a != b} for e in edges}
        problem = Problem(tuple(operators), options_, reorder)
        losses.append(choose_by_vote(problem, seed).seconds / choose_exactly(problem).seconds - 1.0)
    return losses


def _operators(report: Report, files: dict[str, Path], quick: bool) -> None:
    """Figures 8 to 10: where the time goes, and what layouts and loops save, by operator."""
    from pliant import compiled
    from pliant.run.schedule import Planner

    library, pool = compiled.shared_pool(THREADS)
    rows = []
    for name, path in files.items():
        session = compiled.compile(path, without=("channels_last", "winograd"), threads=THREADS)
        graph = session.graph(compiled.sample_feeds(session.inputs))
        found = Planner("exact", pool, library).operators(graph)
        total = sum(row.default_s for row in found)
        for row in sorted(found, key=lambda row: -row.default_s)[:6]:
            rows.append(  # noqa: PERF401
                {
                    "model": name,
                    "operator": row.op,
                    "n": row.n,
                    "share": row.default_s / total,
                    "plain loops i-j-k [ms]": "" if row.loops_s is None else 1e3 * row.loops_s,
                    "default layouts, tiled [ms]": 1e3 * row.default_s,
                    "exact layouts, tiled [ms]": 1e3 * row.chosen_s,
                    "layouts and Winograd save": 1.0 - row.chosen_s / row.default_s if row.default_s else 0.0,
                    "loops save": "" if row.loops_s is None else 1.0 - row.default_s / row.loops_s,
                }
            )
    report.table("Figures 8 to 10: operators, each measured alone", rows)


def _memory(report: Report, files: dict[str, Path], quick: bool) -> None:
    """Table 4: peak resident memory of fresh processes that load and answer once."""
    rows = []
    for name, path in files.items():
        found = {}
        for runtime in ("pliant", "onnxruntime", "import"):
            command = [sys.executable, __file__, "--child", runtime, "--model", str(path)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            found[runtime] = json.loads(done.stdout.splitlines()[-1])
        ours, theirs = found["pliant"], found["onnxruntime"]
        rows.append(
            {
                "model": name,
                "file [MB]": path.stat().st_size / 1e6,
                "pliant, compiled directory [MB]": ours["rss"] / 1e6,
                "onnxruntime [MB]": theirs["rss"] / 1e6,
                "python and numpy [MB]": found["import"]["rss"] / 1e6,
                "ratio": ours["rss"] / theirs["rss"],
                "arena [MB]": ours["arena"] / 1e6,
            }
        )
    report.table("Table 4: peak resident memory of fresh processes", rows)
    report.claim(
        "compile.schedule.memory",
        max(row["ratio"] for row in rows),
        "below onnxruntime in every model (paper: 346.6 / 835.7 for BERT)",
        all(row["ratio"] < 1.0 for row in rows),
    )


def _child(runtime: str, model: str) -> dict[str, float]:
    """Load, run once, tell the peak. The directory is compiled in a process of its own."""
    arena = 0
    if runtime == "pliant":
        directory = Path(model).with_suffix(".pliant")
        if not directory.exists():
            verb = ["-c", "from pliant.cli.app import app; app()", "compile"]
            compile_ = [sys.executable, *verb, model, "-o", str(directory)]
            subprocess.run(compile_, check=True, capture_output=True)
        import pliant

        session = pliant.load(directory, threads=THREADS)
        session.run({x: np.ones(t.shape, t.numpy) for x, t in session.program.inputs.items()})
        arena = session.arena_bytes
    elif runtime == "onnxruntime":
        import onnxruntime

        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = THREADS
        session = onnxruntime.InferenceSession(model, settings, providers=["CPUExecutionProvider"])
        kinds = {"tensor(float)": np.float32, "tensor(int64)": np.int64}
        session.run(None, {x.name: np.ones(x.shape, kinds[x.type]) for x in session.get_inputs()})
    return {"rss": _peak_bytes(), "arena": arena}


def _peak_bytes() -> int:
    """This process's own peak: getrusage's would begin with that of the process which started it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def _items(report: Report) -> None:
    """Paper item -> script -> result or miss."""
    rows = [
        ("Table 2, Figures 5 to 7", "bench/fluidml.py", "Table 2; on one CPU of this machine, not three"),
        ("Table 2, ONNX-MLIR", "-", "miss: no package to install"),
        ("Figures 8 to 10, 13", "bench/fluidml.py", "Figures 8 to 10"),
        ("Figure 11, Table 3", "bench/fluidml.py", "Table 3, on two models of our own"),
        ("Table 4", "bench/fluidml.py", "Table 4; torch and TVM: miss"),
        (
            "Table 5",
            "tests/compile/test_ahead.py",
            "0 mallocs after opening, on a small graph; per model and TVM: miss",
        ),
        ("Algorithms 1 to 3", "tests/compile/schedule", "held against brute force"),
        ("Algorithm 4", "tests/compile/test_place.py", "held against the exact optimum"),
    ]
    report.table(
        "Paper item, script, result or miss",
        [dict(zip(("item", "script", "result"), row, strict=True)) for row in rows],
    )


if __name__ == "__main__":
    main()
