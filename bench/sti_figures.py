"""Figures 1 and 7 of STI in our rows: accuracy against weights in memory, a panel a device and target."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sti_plans import Cell
from sti_rig import Rig

_MARKS = {"Ours": "*", "Ours-0MB": "P", "Preload-full": "s", "Preload-6": "D"}


def draw_accuracy_against_memory(rig: Rig, cells: Sequence[Cell], path: Path) -> None:
    """One point a system: weights in memory as planned (MB, logarithmic) and accuracy on the dev set."""
    from matplotlib.figure import Figure

    places = list(dict.fromkeys((c.device.preset.name, c.share) for c in cells))
    columns = -(-len(places) // 2)
    figure = Figure(figsize=(4.2 * columns, 6.4), layout="constrained")
    panels = np.atleast_1d(figure.subplots(2, columns, sharey=True)).ravel()
    for panel, (device, share) in zip(panels, places, strict=False):
        for cell in (c for c in cells if (c.device.preset.name, c.share) == (device, share)):
            megabytes = cell.plan.memory.weight_bytes / 1e6
            percent = 100 * float(np.mean(rig.right(cell.plan)))
            is_ours = cell.system.startswith("Ours")
            panel.plot(megabytes, percent, _MARKS.get(cell.system, "o"), color="C3" if is_ours else "C0")
            panel.annotate(
                cell.system, (megabytes, percent), fontsize=6, xytext=(3, 3), textcoords="offset points"
            )
        panel.set_xscale("log")
        panel.set_title(f"{device}, {share} of full compute", fontsize=9)
        panel.set_xlabel("weights in memory, MB")
    for row in range(2):
        panels[row * columns].set_ylabel("accuracy, %")
    figure.savefig(path)
