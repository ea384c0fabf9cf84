"""Between which bitwidths importance is measured. Knows no store."""

from pliant.store.manifest import FULL_BITS as FULL_BITS

LOWEST_BITS = 2
