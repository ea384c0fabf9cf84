"""How much each shard matters (STI 5.2): the paper's ablation and its first-order estimate."""

from pliant.evaluate.answers import Labelled
from pliant.importance.ablation import Ablation, ablate
from pliant.importance.bits import FULL_BITS, LOWEST_BITS
from pliant.importance.compare import draw_importance, importance_text, rank_correlation
from pliant.importance.gradient import first_order

__all__ = [
    "FULL_BITS",
    "LOWEST_BITS",
    "Ablation",
    "Labelled",
    "ablate",
    "draw_importance",
    "first_order",
    "importance_text",
    "rank_correlation",
]
