"""Hepti's evaluation (sections 3, 5) on emulated devices: modes, bounds, predictions, bytes, offloading.

Needs root (see testbed). What is measured is kept a part at a time in DIR, so a run that was stopped goes on
where it was; `--only` measures some parts and takes the others from there.
"""

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import hepti_adapt
import hepti_bytes
import hepti_compact
import hepti_faults
import hepti_modes
import hepti_never_slower
import hepti_products
from hepti_beds import check_bed
from hepti_items import items
from hepti_modes import MODELS
from hepti_rig import SLOWER, TOKENS
from hepti_tables import explained, figure_claims, figure_rows, sweep_claims, sweep_rows
from kept import Kept, tree
from report import Report, options

NOTES = (
    "Devices are namespaces joined by veth and shaped by `tc tbf`; each is a process (`pliant worker`, and "
    "the primary) with one thread for compute, and the connections are encrypted. All are this CPU; a "
    f"slower one rests after each stage. The primary is {SLOWER:g} times slower than its secondary: then "
    "equal ends mean 87.5 % offloaded, the paper's share at 940 Mbit/s. Its own devices differ by 2.9 "
    "(Figure 3), at which 87.5 % could not be the quickest share.",
    "Weights are random (seeded). BERT-Large's layers are its own (hidden 1024, 16 heads, feed forward 4096) "
    "but fewer: 4 of 24 (2 with --quick); MobileBERT has 12 of 24 (4). Every layer of a model takes the same "
    "time, so that ratios carry over; absolute times are of the layers that ran. Serial execution is the "
    "primary alone, in the same program.",
    "Prediction: the devices as `cluster.measure` profiles them in this process, the links as "
    "`cluster.measure_links` measures them between the two devices, priced by the one cost model. What the "
    "input and head stages take is not predicted and not compared.",
    "Why the paper's gains differ: with its devices' ratio of 2.9, 7/8 of its 333 ms layer leave 100 ms "
    "to the secondary; so of its 170, 225 and 267 ms a layer (WS, 1D, 2D) 70, 125 and 167 are exchange, "
    "at 16 to 34 MB/s on a link of 117. The table of layers says how near to the link's bandwidth ours "
    "come. What WS saves of serial is bounded by the 7/8 that it takes off the primary.",
    "2D on two devices is one group of two columns, as the product takes it: attended heads are gathered, "
    "the output product is cut by its columns, the feed forward as in 1D.",
)


def main() -> None:
    opts = options(__doc__ or "", _own_options)
    check_bed()
    report = Report("hepti", f"batch 1, {TOKENS} tokens, two devices, one thread each, fp32", opts)
    for note in NOTES:
        report.note(note)
    with TemporaryDirectory() as name:
        folder = Path(opts.kept or name).absolute()
        only = tuple(opts.only.split(",")) if opts.only else ()
        unknown = sorted(set(only) - set(_parts(opts.quick)))
        if unknown:
            raise SystemExit(f"there are no {unknown}; known are {', '.join(_parts(opts.quick))}.")
        kept = Kept(folder / ("rows-quick" if opts.quick else "rows"), tree(), only)
        found = {part: kept.get(part, part, run) for part, run in _parts(opts.quick).items()}
    _tables(report, {part: rows for part, rows in found.items() if rows is not None})
    report.finish()


def _own_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kept", metavar="DIR", help="where measured parts are kept")
    parser.add_argument("--only", help="what may be measured, separated by commas")


def _parts(quick: bool) -> dict[str, Callable[[], Any]]:
    """Every part by name."""
    parts: dict[str, Callable[[], Any]] = {}
    for model in MODELS:
        parts[model.lower()] = lambda model=model: hepti_modes.measure(model, quick)  # type: ignore[misc]
    parts["bytes"] = lambda: hepti_bytes.measure(quick)
    parts["products"] = lambda: hepti_products.measure(quick)
    parts["compact"] = lambda: hepti_compact.measure(quick)
    parts["adapt"] = lambda: hepti_adapt.measure(quick)
    parts["never-slower"] = lambda: hepti_never_slower.measure(quick)
    parts["faults"] = lambda: hepti_faults.measure(quick)
    return parts


def _tables(report: Report, found: Mapping[str, Any]) -> None:
    models = {model: found[model.lower()] for model in MODELS if model.lower() in found}
    if models:
        report.table("Figure 6: end to end, median (least to most)", figure_rows(models))
        report.table("A mean layer: predicted, measured, and its bound (ms)", explained(models))
        report.table("Predicted beside measured, over modes, splits and bandwidths", sweep_rows(models))
        report.claims += [*figure_claims(models), *sweep_claims(models)]
    if "bytes" in found:
        report.table("Table 3: bytes of one layer of BERT-Large", found["bytes"]["points"])
        report.table("Table 3: whole runs, by who counted", found["bytes"]["counted"])
        report.table("5.2: additions of one layer, and memory of 24", found["bytes"]["work"])
        report.claims += hepti_bytes.claims(found["bytes"])
    if "products" in found:
        rows = found["products"]["rows"]
        for title, figure in (
            ("Figure 3 (a): 90 % of m rows offloaded, and none", "3a"),
            ("Figure 3 (b): 256 rows, by what is offloaded", "3b"),
        ):
            shown = [row for row in rows if row["figure"] == figure]
            report.table(title, [{k: v for k, v in row.items() if k != "figure"} for row in shown])
        report.claims += hepti_products.claims(found["products"])
    if "compact" in found:
        report.table("Compact exchanges: BERT-Large, 87.5 % offloaded", found["compact"]["times"])
        report.table("Compact exchanges: the bundled classifier on SST-2", found["compact"]["answers"])
        report.table("Gloo beside ZeroMQ, over the same links", found["compact"]["engines"])
    if "adapt" in found:
        report.table("Figure 7: segments, between two devices", found["adapt"]["rows"])
        report.table("5.3: below 100 Mbit/s, beside local inference", found["adapt"]["poor"])
        report.claims += hepti_adapt.claims(found["adapt"])
    if "never-slower" in found:
        report.table("Chosen plans beside the best single device", found["never-slower"])
        report.claims += hepti_never_slower.claims(found["never-slower"])
    if "faults" in found:
        report.table("Faults in the middle of runs", hepti_faults.summary(found["faults"]))
        report.claims += hepti_faults.claims(found["faults"])
    report.table("Paper item, script, result or miss", items(found))


if __name__ == "__main__":
    main()
