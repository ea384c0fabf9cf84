"""Time and error of each arithmetic: float32, bfloat16 and int8 against onnxruntime and OpenVINO.

BERT-base and MiniLM of bench/compile.py (random weights), and the shipped MiniLM with trained weights: 128
tokens, two threads. Each runtime has its own process, and they run interleaved. The error is the rms of the
difference from onnxruntime's float32 answer divided by the rms of the answer.
"""

from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from compile_int8 import Subject, answer_error, random_model, trained_model
from paired import paired
from pliant.kernels.emit.isa import host_isa
from report import Report, interleaved, options
from runtimes import THREADS
from serving import Server
from text_models import BERT, MINILM

OURS = ("pliant", "bf16", "6 bits", "6 bits bf16", "6 bits int8", "8 bits int8")
BF16_TIME, BF16_ERROR = 0.65, 0.01


def main() -> None:
    opts = options(__doc__ or "")
    report = Report("precision", f"batch 1, 128 tokens, {THREADS} threads", opts)
    report.note(
        "`pliant` and `bf16` use the model's own weights, `6 bits` codes decoded on the fly, `8 bits` bytes. "
        'OpenVINO multiplies in bfloat16 if this CPU does. `pliant.compile(..., compute="auto")` '
        "measures the same for a model and its examples."
    )
    if not host_isa().has_bf16:
        report.note("This CPU has no products of bfloat16: those rows were not measured.")
    with TemporaryDirectory() as name:
        folder = Path(name)
        made = {
            "BERT-base": lambda: random_model(folder, "BERT-base", BERT),
            "MiniLM-L6": lambda: random_model(folder, "MiniLM-L6", MINILM),
            "MiniLM-L6, trained": lambda: trained_model(folder),
        }
        for make in list(made.values())[1:2] if opts.quick else made.values():
            _measure(report, make(), 7 if opts.quick else 15)
    report.finish()


def _measure(report: Report, subject: Subject, rounds: int) -> None:
    ours = [x for x in OURS if "bf16" not in x or host_isa().has_bf16]
    with ExitStack() as stack:

        def serve(name: str, file: Path) -> Server:
            return stack.enter_context(Server(name, file, subject.feeds))

        servers = {name: serve(name, subject.fp32) for name in ("onnxruntime", *ours)}
        if find_spec("openvino"):
            servers |= {name: serve(name, subject.fp32) for name in ("openvino", "openvino bf16")}
        wanted = servers["onnxruntime"].answer
        servers["onnxruntime int8"] = serve("onnxruntime", subject.int8)
        seconds, _ = interleaved({name: server.seconds for name, server in servers.items()}, rounds)
        errors = {x: answer_error(server.answer, wanted) for x, server in servers.items()}
    rows = [
        {
            "runtime": name,
            "median ms": median(taken) * 1e3,
            "/ pliant fp32": str(paired(taken, seconds["pliant"])),
            "/ onnxruntime": str(paired(taken, seconds["onnxruntime"])),
            "/ onnxruntime int8": str(paired(taken, seconds["onnxruntime int8"])),
            "error, rms / rms": errors[name],
        }
        for name, taken in seconds.items()
    ]
    report.table(f"{subject.name}: time, and error against onnxruntime fp32", rows)
    if "bf16" in seconds:
        ratio = paired(seconds["bf16"], seconds["pliant"])
        note = f"{subject.name}; 95 % interval {ratio.low:.3f} to {ratio.high:.3f}"
        bar = f"bf16 at most {BF16_TIME} of our own fp32's time"
        report.claim("precision.bf16", ratio.value, bar, ratio.value <= BF16_TIME, note)
        bar = f"error of bf16 at most {BF16_ERROR}"
        report.claim("precision.bf16", errors["bf16"], bar, errors["bf16"] <= BF16_ERROR, subject.name)


if __name__ == "__main__":
    main()
