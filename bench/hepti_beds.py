"""The testbed and encoders with random weights, for bench/hepti_*.py."""

import json
from pathlib import Path
from typing import Any

import checkout  # noqa: F401 - research and testbed lie there
from testbed import Device, DeviceSpec, Network, rate, why_not
from testbed.hepti import Bed, open_bed
from testbed.inside import inside

__all__ = ["Bed", "Device", "DeviceSpec", "Network", "check_bed", "inside", "open_bed", "random_bert", "rate"]


def check_bed() -> None:
    """Exit with the reason if this machine has no testbed."""
    reason = why_not()
    if reason is not None:
        raise SystemExit(f"no testbed: {reason}.")


def random_bert(folder: Path, layers: int, hidden: int, heads: int, ffn: int, tokens: int = 512) -> str:
    """The model name for `pliant` of a BERT of this size with random weights."""
    config: dict[str, Any] = {
        "model_type": "bert",
        "architectures": ["BertModel"],
        "vocab_size": 1000,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": ffn,
        "max_position_embeddings": tokens,
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-12,
        "hidden_act": "gelu",
    }
    path = folder / f"bert-{layers}-{hidden}.json"
    path.write_text(json.dumps(config))
    return f"random:{path}"
