"""Importance of each shard (STI 5.2): the paper's ablation and its first-order estimate."""

from pliant.elastic.evaluate.labelled_inputs import LabelledInput
from pliant.elastic.importance.ablation import Ablation, ablate
from pliant.elastic.importance.gradient import first_order

__all__ = ["Ablation", "LabelledInput", "ablate", "first_order"]
