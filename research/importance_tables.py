"""Print, draw and compare tables of importance."""

from pathlib import Path

import numpy as np

from pliant.arrays import Float
from pliant.errors import InputError


def rank_correlation(a: Float[np.ndarray, "..."], b: Float[np.ndarray, "..."]) -> float:
    """Spearman's rho: the correlation of ranks, ties sharing their mean rank; nan when one is constant."""
    x, y = _ranks(np.asarray(a).ravel()), _ranks(np.asarray(b).ravel())
    if len(x) != len(y) or len(x) < 2:
        raise InputError(f"ranks of {len(x)} and {len(y)} values cannot be compared; give two equal tables.")
    x, y = x - x.mean(), y - y.mean()
    scale = float(np.sqrt((x @ x) * (y @ y)))
    return float(x @ y) / scale if scale else float("nan")


def importance_text(table: Float[np.ndarray, "N M"]) -> str:
    """Figure 5 in characters: one row per layer, one column per slice, 0 the least and 9 the most
    important.
    """
    low, high = float(table.min()), float(table.max())
    tenths = np.zeros(table.shape, int) if high <= low else np.minimum(9, 10 * (table - low) / (high - low))
    rows = [f"layer {k:2d}  " + " ".join(str(int(v)) for v in row) for k, row in enumerate(tenths)]
    return "\n".join(rows) + "\n"


def draw_importance(table: Float[np.ndarray, "N M"], path: Path, title: str) -> Path:
    """Figure 5: a heat map, lighter is more important; `path` ends in .svg, .png or .pdf.

    Raises InputError without the extra `[plot]`.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InputError("a heat map needs matplotlib: pip install 'pliant[plot]'.") from error
    figure = Figure(figsize=(1.5 + 0.4 * table.shape[1], 1.3 + 0.4 * table.shape[0]), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(table, cmap="gray", aspect="auto")
    axes.set(xlabel="slice", ylabel="layer", title=title)
    axes.set_xticks(range(table.shape[1]))
    axes.set_yticks(range(table.shape[0]))
    figure.colorbar(image)
    figure.savefig(path)
    return path


def _ranks(values: np.ndarray) -> np.ndarray:
    _, where, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[where], np.float64)
