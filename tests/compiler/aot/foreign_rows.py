"""Rows of instruction sets that compilers here link, but that this processor does not execute."""

from pliant import system
from pliant.kernels.emit.isa import ISAS, Isa, host_flags, needed_flags


def foreign_rows() -> list[Isa]:
    """Rows of this architecture; none on a processor that has every feature, used here or not."""
    return [
        isa for isa in ISAS if isa.architecture == system.machine() and not needed_flags(isa) <= host_flags()
    ]


def isa_id(isa: Isa) -> str:
    """A name of the row for a test."""
    return f"{isa.name}{isa.features}"
