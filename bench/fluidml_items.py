"""Every table, figure, algorithm and equation of FluidML's paper: its location here, and the result."""

from collections.abc import Mapping, Sequence

Row = Mapping[str, object]
_TESTS = "tests/compiler/layout/test_choose_layouts.py"


def items(
    latency: Sequence[Row], ratios: Sequence[Row], votes: Sequence[Row], memory: Sequence[Row],
    each: Mapping[str, Sequence[Row]],
) -> list[dict[str, str]]:  # fmt: skip
    """A row for each item, with a verdict from the rows that were measured."""
    losses = [f"{row['loss of votes']:.3f}" for row in votes if isinstance(row["loss of votes"], float)]
    c = [row.get("C library, all runs") for row in each["allocations"]]
    tvm = sum(row["runtime"] == "tvm" and row["runs"] != 0 for row in ratios)
    above = max((float(str(row["greedy / optimum"])) for row in each["arena"]), default=0.0)
    rows = (
        ("Figure 1 (loop orders of a product)", "fluidml_operators.py", "result: plain loops beside cc's"),
        ("Figure 2 (layouts in conflict)", _TESTS, "an illustration; conflicts are counted per model"),
        ("Figure 3 (one block for all tensors)", "fluidml_arena.py", "result: each apart, greedy, optimum"),
        ("Figure 4 (workflow)", "-", "an illustration: src/pliant/compile, run/graph/schedule_graph.py"),
        ("Equation 1", _TESTS, "result: `_optimise` in compiler/layout/majority_vote.py"),
        ("Algorithm 1 (longest sequence)", _TESTS, "result: held against relaxation"),
        ("Algorithm 2 (all sequences)", _TESTS, "result: every operator in exactly one"),
        ("Algorithm 3 (layouts by programming)", _TESTS, "result: never below the optimum"),
        ("Algorithm 4 (greedy by size)", "tests/compiler/executable/test_place_tensors.py, fluidml_arena.py",
         f"result: at most {above:.3f} of the optimum or its bound"),
        ("Table 1 (platforms)", "-", "miss: one CPU, named above; Intel and Apple were not at hand"),
        ("Table 2 (latency)", "fluidml_runtimes.py", f"result: {_below(latency, 'onnxruntime [ms]')}"),
        ("Table 2, ONNX-MLIR", "-", "miss: no package to install"),
        ("Table 2, TVM (not in the paper's)", "tvm_build.py", f"result: {tvm} models, untuned"),
        ("Figures 5 to 7 (normalised latency)", "fluidml_runtimes.py", "result: ratios to onnxruntime"),
        ("Figure 8 (operators)", "fluidml_operators.py", "result"),
        ("Figures 9, 10 (shares of operators)", "fluidml_operators.py", "result: share, plain and exact"),
        ("Figure 11 (two small models)", "fluidml_votes.py", "result, on models of our own: not in the text"),
        ("Figure 12", "-", "not named in the paper's text; taken to be Table 4's bars"),
        ("Table 3 (votes against the optimum)", "fluidml_votes.py",
         f"result: losses {', '.join(losses)} beside 0.17 and 0.09"),
        ("Table 4 (peak memory)", "fluidml_runtimes.py", f"result: {_smaller(memory)}"),
        ("Table 5 (allocations)", "fluidml_allocations.py",
         f"result: {sum(n == 0 for n in c)} of {len(c)} models ask for nothing after opening"),
        ("Figure 13 (operators of all models)", "fluidml_operators.py", "result: with Figure 8's table"),
    )  # fmt: skip
    return [dict(zip(("item", "script", "result"), row, strict=True)) for row in rows]


def _below(latency: Sequence[Row], peer: str) -> str:
    ours = [(_number(row["static, what users get [ms]"]), _number(row[peer])) for row in latency]
    return f"what users get is below onnxruntime in {sum(a < b for a, b in ours)} of {len(ours)} models"


def _smaller(memory: Sequence[Row]) -> str:
    n = {
        peer: sum(_number(row["pliant.load of a directory"]) < _number(row[peer]) for row in memory)
        for peer in ("onnxruntime", "torch")
    }
    return ", ".join(f"below {peer} in {k}" for peer, k in n.items()) + f" of {len(memory)} models"


def _number(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) else float("inf")
