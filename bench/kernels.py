"""Row kernels, attention and the pool against torch: the cost of a call and of loading."""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

from pliant.kernels.attention.attention import (
    attention_ir,
    attention_name,
    grain,
    qkv_args,
    scratch_bytes,
    units,
)
from pliant.kernels.emit.isa import host_isa
from pliant.kernels.rows.rowwise import LAYER_NORM, LayerNormArgs, layer_norm_ir
from pliant.kernels.runtime.jit import Library, compile_modules
from pliant.kernels.runtime.thread_pool import CallTable, ThreadPool
from pliant.kernels.runtime.walker import walker_ir
from report import Report, interleaved, options

HEADS = 12


def main() -> None:
    chosen: argparse.Namespace = options(__doc__ or "")
    rounds = 10 if chosen.quick else 60
    report = Report("kernels", f"{HEADS} heads, random float32, {rounds} interleaved rounds", chosen)
    isa = host_isa()
    library = Library(isa, Path(tempfile.mkdtemp()))
    report.table("Compiling and loading", _compile_rows(library))
    rows = []
    for n_threads in (1, 2):
        torch.set_num_threads(n_threads)
        with ThreadPool(n_threads, library, scratch_bytes(64, 512, isa)) as pool:
            for head_dim in (32, 64):
                rows += [_attention_row(pool, library, head_dim, n, rounds) for n in (16, 128, 512)]
            rows += [
                _norm_row(pool, library, width, n, rounds) for width in (384, 768) for n in (16, 128, 512)
            ]
    report.table("Beside torch (medians; ratio of paired rounds, below 1 is faster)", rows)
    report.finish()


def _compile_rows(library: Library) -> list[dict[str, object]]:
    generators: dict[str, Callable[[], str]] = {
        attention_name(32): lambda: attention_ir(library.isa, 32),
        LAYER_NORM: lambda: layer_norm_ir(library.isa),
        "walk": lambda: walker_ir(library.isa),
    }
    rows = []
    for name, generate in generators.items():
        start = time.perf_counter()
        text = generate()
        generated = time.perf_counter()
        (data,) = compile_modules([text], library.isa)
        compiled = time.perf_counter()
        rows.append(
            {
                "kernel": name,
                "generate ms": (generated - start) * 1e3,
                "child process ms": (compiled - generated) * 1e3,
                "object bytes": len(data),
            }
        )
    return rows


def _attention_row(
    pool: ThreadPool, library: Library, head_dim: int, n: int, rounds: int
) -> dict[str, object]:
    isa, width = library.isa, HEADS * head_dim
    kernel = library.load_function(attention_name(head_dim), lambda: attention_ir(isa, head_dim))
    qkv, out = _random(n, 3 * width), np.zeros((n, width), np.float32)
    args = qkv_args(qkv.ctypes.data, 3 * width, out.ctypes.data, width, HEADS, head_dim, head_dim**-0.5)
    args.n_rows = args.n_tokens = n
    table = CallTable()
    table.add(kernel, args, units(HEADS, n, isa), grain(HEADS, n, isa, pool.n_threads))
    q, k, v = torch.from_numpy(qkv.reshape(n, HEADS, 3, head_dim).transpose(2, 1, 0, 3).copy())[:, None]
    row = _compare(
        lambda: pool.walk(table), lambda: functional.scaled_dot_product_attention(q, k, v), rounds, n
    )
    flops = 4 * n * n * width
    return {"kernel": attention_name(head_dim), "threads": pool.n_threads, "rows": n} | row(flops)


def _norm_row(pool: ThreadPool, library: Library, width: int, n: int, rounds: int) -> dict[str, object]:
    kernel = library.load_function(LAYER_NORM, lambda: layer_norm_ir(library.isa))
    x, weight, bias = _random(n, width), _random(width), _random(width)
    out = np.zeros_like(x)
    args = LayerNormArgs(
        *(x.ctypes.data, width, out.ctypes.data, width, weight.ctypes.data, bias.ctypes.data),
        *(width, width, 1e-5),
    )
    table = CallTable()
    table.add(kernel, args, n, 8)
    tensors = [torch.from_numpy(a) for a in (x, weight, bias)]
    row = _compare(
        lambda: pool.walk(table), lambda: functional.layer_norm(tensors[0], (width,), *tensors[1:]), rounds, n
    )
    return {"kernel": f"{LAYER_NORM} {width}", "threads": pool.n_threads, "rows": n} | row(8 * n * width)


def _compare(
    ours: Callable[[], object], torch_s: Callable[[], object], rounds: int, n: int
) -> Callable[[int], dict[str, object]]:
    """Both runtimes, interleaved, as columns of a row, given the operations of one call."""
    repeats = max(1, 4096 // n)
    seconds, ratio = interleaved({"pliant": _timed(ours, repeats), "torch": _timed(torch_s, repeats)}, rounds)

    def columns(flops: int) -> dict[str, object]:
        mine, peer = (float(np.median(seconds[name])) for name in ("pliant", "torch"))
        return {
            "pliant us": mine * 1e6,
            "torch us": peer * 1e6,
            "GFLOP/s": flops / mine / 1e9,
            "ratio": ratio("pliant", "torch"),
        }

    return columns


def _timed(function: Callable[[], object], repeats: int) -> Callable[[], float]:
    def seconds() -> float:
        start = time.perf_counter()
        for _ in range(repeats):
            function()
        return (time.perf_counter() - start) / repeats

    return seconds


def _random(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


if __name__ == "__main__":
    main()
