"""Draw the accuracy grid as a heat map. The one elastic module that needs matplotlib."""

from pathlib import Path

from pliant.elastic.grid import Grid
from pliant.errors import InputError


def draw_grid(grid: Grid, path: Path, title: str) -> Path:
    """Write accuracy in per cent over layers (rows) and slices (columns) as the picture `path` names.

    The ending decides the format (.png, .svg, .pdf). Raises InputError without the extra `[plot]`.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as e:
        raise InputError("a heat map needs matplotlib: pip install 'pliant[plot]'.") from e
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
