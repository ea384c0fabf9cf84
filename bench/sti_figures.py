"""Figures 1 and 7 of STI in our measurements: accuracy against weights in memory, one panel per device and
target.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sti_rig import Rig, majority
from sti_tables import CellResult

_MARKS = {"Ours": "*", "Ours-0MB": "P", "Preload-full": "s", "Preload-6": "D"}


def draw_accuracy_against_memory(rig: Rig, found: Sequence[CellResult], path: Path) -> None:
    """One point per system: weights in memory (MB, logarithmic) and accuracy on the dev set."""
    from matplotlib.figure import Figure

    places = list(dict.fromkeys(x.place for x in found))
    columns = -(-len(places) // 2)
    figure = Figure(figsize=(4.2 * columns, 6.4), layout="constrained")
    panels = np.atleast_1d(figure.subplots(2, columns, sharey=True)).ravel()
    for panel, (device, share) in zip(panels, places, strict=False):
        for x in (x for x in found if x.place == (device, share)):
            megabytes = x.runs.weight_bytes / 1e6
            percent = 100 * float(np.mean(x.predicted == rig.labels))
            is_ours = x.cell.system.startswith("Ours")
            panel.plot(megabytes, percent, _MARKS.get(x.cell.system, "o"), color="C3" if is_ours else "C0")
            panel.annotate(
                x.cell.system, (megabytes, percent), fontsize=6, xytext=(3, 3), textcoords="offset points"
            )
        panel.axhline(100 * float(np.mean(rig.labels == majority(rig.labels))), color="0.6", linestyle=":")
        panel.set_xscale("log")
        panel.set_title(f"{device}, {share} of full compute", fontsize=9)
        panel.set_xlabel("weights in memory, MB")
    for row in range(2):
        panels[row * columns].set_ylabel("accuracy, %")
    figure.savefig(path)
