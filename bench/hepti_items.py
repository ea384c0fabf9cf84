"""Every table, figure and equation of Hepti's paper: where it is here, and what came of it."""

from collections.abc import Mapping
from typing import Any

from hepti_tables import PAPER_SAVED, saved

_SPLIT, _PARTITION = "tests/plan/test_split.py", "tests/plan/test_partition.py"


def items(found: Mapping[str, Any]) -> list[dict[str, str]]:
    """A row for each item, with what was measured where it was."""
    rows = (
        ("Figure 1 (a transformer's layer)", "-", "an illustration: src/pliant/models/encoder_parts.py"),
        ("Figure 2 (three ways to split a product)", _SPLIT, "result: every mode equals the unsplit model"),
        ("Figure 3 (a) (split product by m)", "hepti_products.py", _split_product(found)),
        ("Figure 3 (b) (offloading ratio)", "hepti_products.py", _offload(found)),
        ("Figure 4 (the three modes)", "tests/cluster/test_local.py", "result: uneven, 1 to 16 devices"),
        ("Figure 5 (exchanges of the modes)", _SPLIT, "result: programs as golden text"),
        ("Table 1 (a) (profiling)", "tests/cluster/test_measure.py", "result: rho, f, s, and links by pair"),
        ("Table 1 (b), equations 1 to 11", _PARTITION, "result: beside all plans tried, and as one MILP"),
        ("Table 2 (the testbed)", "testbed/", "miss: no Raspberry Pi; emulated, as said above"),
        ("Figure 6 (modes, BERT-Large)", "hepti_modes.py", _figure(found, "BERT-Large")),
        ("Figure 6 (modes, MobileBERT)", "hepti_modes.py", _figure(found, "MobileBERT")),
        ("5.2 (2D saves 21.6 % of memory)", "hepti_bytes.py", _memory(found)),
        ("5.2 (1D adds 1,048,576 numbers more)", "hepti_bytes.py", _additions(found)),
        ("Table 3 (bytes between devices)", "hepti_bytes.py", _bytes(found)),
        ("Figure 7 (adaptation)", "hepti_adapt.py", _adapt(found)),
        ("5.3 (below 100 Mbit/s)", "hepti_adapt.py", _adapt(found)),
        ("Figure 8 (time to partition)", "hepti_solve.py", "its own page: hepti_solve.md"),
    )
    return [dict(zip(("item", "script", "result"), row, strict=True)) for row in rows]


_NONE = "not measured in this run"


def _figure(found: Mapping[str, Any], model: str) -> str:
    if model.lower() not in found:
        return _NONE
    said = []
    for one in found[model.lower()]["figure"]:
        paper = PAPER_SAVED.get((model, one["mbit"]), {})
        gains = [
            f"{saved(one, mode):.0f} % ({paper.get(mode, '-')})" for mode in ("serial", "1d", "2d")
        ]  # fmt: skip
        said.append(f"{one['mbit']} Mbit/s: {', '.join(gains)}")
    return f"result: WS saves of serial, 1D, 2D (paper): {'; '.join(said)}"


def _split_product(found: Mapping[str, Any]) -> str:
    if "products" not in found:
        return _NONE
    rows = [r for r in found["products"]["rows"] if r["figure"] == "3a"]
    serial = {r["m"]: r["all [ms]"] for r in rows if r["offloaded %"] == 0}
    saved = [100 * (1 - r["all [ms]"] / serial[r["m"]]) for r in rows if r["offloaded %"]]
    return f"result: {min(saved):.0f} to {max(saved):.0f} % saved (paper: 25.1 to 64.2)"


def _offload(found: Mapping[str, Any]) -> str:
    return _NONE if "products" not in found else "result: [hepti.offload] below"


def _memory(found: Mapping[str, Any]) -> str:
    if "bytes" not in found:
        return _NONE
    saved = {r["mode"]: r["secondary saves [%]"] for r in found["bytes"]["work"]}
    return f"result: 1D saves {saved['1d']:.1f} %, 2D {saved['2d']:.1f} % of the secondary's weights"


def _additions(found: Mapping[str, Any]) -> str:
    if "bytes" not in found:
        return _NONE
    (row,) = (r for r in found["bytes"]["work"] if r["mode"] == "1d")
    return (
        f"result: {row['added sums a layer']:,}: each sum is made once, on its rows' owner; "
        f"on both devices, as the paper's all-reduce does, {row['summed on every device, as in the paper']:,}"
    )


def _adapt(found: Mapping[str, Any]) -> str:
    return "on hepti_adapt.md" if "adapt" not in found else "result: in its table, [hepti.adapt] below"


def _bytes(found: Mapping[str, Any]) -> str:
    return _NONE if "bytes" not in found else "result: to the byte, [hepti.bytes] below; its GB are MB"
