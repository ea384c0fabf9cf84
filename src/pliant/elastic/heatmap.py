"""Draw the accuracy grid as a heat map. The only elastic module that needs matplotlib."""

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from pliant.errors import InputError

if TYPE_CHECKING:  # the command line checks a picture's name without importing torch
    from pliant.elastic.accuracy_counts import AccuracyCounts

ENDINGS = (".svg", ".png", ".pdf")


def check_picture(path: Path) -> None:
    """Raise InputError if `draw_grid` could not write `path`: call it before hours of training."""
    if path.suffix not in ENDINGS:
        raise InputError(f"a picture ends in {', '.join(ENDINGS)}, not {path.name!r}.")
    if not path.parent.is_dir():
        raise InputError(f"{path} cannot be written: the folder {path.parent} does not exist.")
    if find_spec("matplotlib") is None:
        raise InputError("a heat map needs matplotlib: pip install 'pliant[plot]'.")


def draw_grid(grid: "AccuracyCounts", path: Path, title: str) -> Path:
    """Write accuracy in per cent over layers (rows) and slices (columns) as a picture to `path`.

    The suffix determines the format. Raises InputError as `check_picture` does.
    """
    check_picture(path)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    depths = range(1, len(grid.correct) + 1)
    cells = [[100 * grid.accuracy(n, m) for m in grid.widths] for n in depths]
    figure = Figure(figsize=(1.2 + 0.9 * len(grid.widths), 1.4 + 0.5 * len(cells)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    image = axes.imshow(cells, cmap="viridis", aspect="auto")
    axes.set_xticks(range(len(grid.widths)), [str(m) for m in grid.widths])
    axes.set_yticks(range(len(cells)), [str(n) for n in depths])
    axes.set(xlabel="slices a layer (m)", ylabel="layers (n)", title=title)
    low, high = min(map(min, cells)), max(map(max, cells))
    for row, values in enumerate(cells):
        for column, value in enumerate(values):
            colour = "black" if value > (low + high) / 2 else "white"
            axes.text(column, row, f"{value:.1f}", ha="center", va="center", color=colour)
    figure.colorbar(image, label="accuracy (%)")
    figure.savefig(path)
    return path
