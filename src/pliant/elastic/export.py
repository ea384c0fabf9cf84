"""Move weights between torch and model directories, in full or compact."""

from pathlib import Path

import numpy as np
import torch

from pliant.elastic.network import TensorMap
from pliant.models.hf.checkpoint import WORD, Checkpoint, save_checkpoint
from pliant.models.spec import ModelSpec, tensor_shapes
from pliant.store.coding.quantize import quantize_table


def load_weights(checkpoint: Checkpoint) -> dict[str, torch.Tensor]:
    """Every weight of a checkpoint in float32 by canonical name; a coded embedding table is decoded."""
    names = [name for name, _ in tensor_shapes(checkpoint.spec)]
    return {name: torch.from_numpy(np.array(checkpoint.tensor(name))) for name in names}


def write_weights(
    out: Path, spec: ModelSpec, weights: TensorMap, tokenizer_from: Path, is_compact: bool = False
) -> Path:
    """Write the weights as a Hugging Face directory: float32, or half precision with 6-bit word embeddings.

    Raises ModelError if `out` exists or a weight exceeds the range of half precision.
    """
    tensors = {name: w.detach().numpy() for name, w in weights.items()}
    if not is_compact:
        return save_checkpoint(out, spec, tensors, "F32", tokenizer_from)
    return save_checkpoint(out, spec, tensors, "F16", tokenizer_from, table=quantize_table(tensors[WORD]))
