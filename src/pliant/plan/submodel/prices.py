"""The planner's queries of a device's costs (STI 5.2): T_comp of a layer, and the disk while layers run."""

from pliant.ir.cost import Cost
from pliant.ir.link import Link
from pliant.ir.program import Compute


def layer_seconds(costs: Cost, width: int, *, with_io: bool) -> float:
    """Return the time of one layer at `width` slices, alone or during IO."""
    return costs.seconds(Compute("layer", 0, width), ("io",) if with_io else ())


def disk_during_compute(costs: Cost) -> Link:
    """Return the disk's link during compute."""
    return costs.link("io", ("cpu",))
