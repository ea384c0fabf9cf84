"""Every table, figure and equation of Hepti's paper: its location here, and the result."""

from collections.abc import Mapping, Sequence
from typing import Any

from hepti_adapt_tables import claims as claims_of
from hepti_adapt_tables import coedge_faster, figures
from hepti_modes import SECOND
from hepti_tables import PAPER_SAVED, saved, where
from report import Claim

_SPLIT, _PARTITION = "tests/plan/split/test_split_program.py", "tests/plan/partition/test_partitioner.py"
_NONE = "not measured in this run"


def items(found: Mapping[str, Any], claims: Sequence[Claim]) -> list[dict[str, str]]:
    """A row for each item: a result, or a miss with its reason, from the measured parts."""
    held = {claim.id: all(c.holds for c in claims if c.id == claim.id) for claim in claims}
    rows = (
        (
            "Figure 1 (a transformer's layer)",
            "-",
            "an illustration: src/pliant/models/encoder/encoder_parts.py",
        ),
        ("Figure 2 (three ways to split a product)", _SPLIT, "result: every mode equals the unsplit model"),
        ("Figure 3 (a) (split product by m)", "hepti_products.py", _split_product(found)),
        ("Figure 3 (b) (offloading ratio)", "hepti_products.py", _offload(found, held)),
        ("Figure 4 (the three modes)", "tests/cluster/test_local.py", "result: uneven, 1 to 16 devices"),
        ("Figure 5 (exchanges of the modes)", _SPLIT, "result: programs as golden text"),
        (
            "Table 1 (a) (profiling)",
            "tests/cluster/member/test_measure_member.py",
            "result: rho, f, s, and links by pair",
        ),
        ("Table 1 (b), equations 1 to 11", _PARTITION, "result: beside all plans tried, and as one MILP"),
        (
            "Table 2 (the testbed)",
            "testbed/",
            "miss: no Raspberry Pi and no Core i3; one machine's namespaces, tc and dilation stand for them",
        ),
        ("Figure 6 (modes, BERT-Large)", "hepti_modes.py", _figure(found, "BERT-Large")),
        ("Figure 6 (modes, MobileBERT)", "hepti_modes.py", _figure(found, "MobileBERT")),
        ("5.2 (2D saves 21.6 % of memory)", "hepti_bytes.py", _memory(found)),
        ("5.2 (1D adds 1,048,576 numbers more)", "hepti_bytes.py", _additions(found)),
        ("Table 3 (bytes between devices)", "hepti_bytes.py", _bytes(found)),
        ("Figure 7 (adaptation)", "hepti_adapt.py", _adapt(found)),
        ("5.3 (below 100 Mbit/s)", "hepti_adapt.py", _poor(found)),
        (
            "Figure 8, 5.4 (time to partition)",
            "hepti_solve.py",
            "on its own page, hepti_solve.md: [hepti.solve]",
        ),
    )
    return [dict(zip(("item", "script", "result or miss"), row, strict=True)) for row in rows]


def _figure(found: Mapping[str, Any], model: str) -> str:
    if model not in found:
        return _NONE
    said, short = [], []
    for one in found[model]["figure"]:
        paper = PAPER_SAVED.get((model, one["mbit"]), {})
        gains = {mode: saved(one, mode) for mode in ("serial", SECOND, "1d", "2d")}
        beside = [f"{gain:.0f} % ({paper.get(mode, '-')})" for mode, gain in gains.items()]
        said.append(f"{where(one)}: {', '.join(beside)}")
        short += [f"{mode} at {where(one)}" for mode, gain in gains.items() if gain < paper.get(mode, 0)]
    verdict = f"miss against {'; '.join(short)}; the terms stand at [hepti.ws]" if short else "result"
    return f"{verdict}: WS saves of serial, of the secondary alone, 1D, 2D (paper): {'; '.join(said)}"


def _split_product(found: Mapping[str, Any]) -> str:
    if "products" not in found:
        return _NONE
    rows = [r for r in found["products"]["rows"] if r["figure"] == "3a"]
    serial = {r["m"]: r["all [ms]"] for r in rows if r["offloaded %"] == 0}
    less = [100 * (1 - r["all [ms]"] / serial[r["m"]]) for r in rows if r["offloaded %"]]
    verdict = "result" if min(less) >= 25.1 else "miss"
    return f"{verdict}: {min(less):.0f} to {max(less):.0f} % saved (paper: 25.1 to 64.2)"


def _offload(found: Mapping[str, Any], held: Mapping[str, bool]) -> str:
    if "products" not in found:
        return _NONE
    return f"{_verdict(held, 'hepti.offload')}: [hepti.offload], beside what the paper's own numbers predict"


def _memory(found: Mapping[str, Any]) -> str:
    if "bytes" not in found:
        return _NONE
    less = {r["mode"]: r["secondary saves [%]"] for r in found["bytes"]["work"]}
    counted = found["bytes"]["memory"]
    whole = next(row["saved [%]"] for row in counted if row["counted"].startswith("the whole model"))
    return (
        f"miss: 1D saves {less['1d']:.1f} %, 2D {less['2d']:.1f} % of the weights that the secondary reads: "
        "in WS it holds its own heads' share and no embeddings; counted from the whole model, as the paper's "
        f"seems to be, {whole:.1f} %"
    )


def _additions(found: Mapping[str, Any]) -> str:
    if "bytes" not in found:
        return _NONE
    (row,) = (r for r in found["bytes"]["work"] if r["mode"] == "1d")
    return (
        f"result: {row['added sums a layer']:,}: each sum is made once, on its rows' owner; "
        f"on both devices, as the paper's all-reduce does, {row['summed on every device, as in the paper']:,}"
    )


def _bytes(found: Mapping[str, Any]) -> str:
    return _NONE if "bytes" not in found else "result: to the byte, [hepti.bytes]; its GB are MB"


def _adapt(found: Mapping[str, Any]) -> str:
    said = []
    for _, figure, rows in figures(found):
        own = claims_of(figure, rows)
        beside = coedge_faster(rows)
        verdicts = [f"{'result' if claim.holds else 'miss'}: {claim.value}" for claim in own]
        verdicts.append(f"miss: {beside}" if beside else "result: CoEdge is faster in no segment")
        said.append(f"primary {figure['ratio']:g} times slower: {'; '.join(verdicts)}")
    return f"{'. '.join(said)} ([hepti.adapt])" if said else _NONE


def _poor(found: Mapping[str, Any]) -> str:
    if "poor" not in found:
        return _NONE
    tiled, chosen = (row["above local [%]"] for row in found["poor"])
    return f"result: 1D takes {tiled:+.1f} % beside local (paper: +1.9), what is chosen {chosen:+.1f} %"


def _verdict(held: Mapping[str, bool], claim: str) -> str:
    return "result" if held.get(claim) else "miss"
