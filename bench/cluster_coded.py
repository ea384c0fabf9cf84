"""[cluster.coded] BERT-base on three unequal devices, each limited to a twelfth of its layers' bytes.

The devices are emulated (testbed; needs root): namespaces, a link of 400 Mbit/s each, and speeds; each worker
is a process. All weights are codes of a store, and no device could hold them all. The answer is compared with
float64 (torch) on the store decoded to the same bits. The same split in float32 runs interleaved with it on
devices without a memory limit.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import psutil
import tokenizers
import torch
from tokenizers import models, pre_tokenizers, processors

from hepti_beds import DeviceSpec, check_bed, open_bed, rate
from hepti_rig import PRIMARY, open_rig
from paired import paired
from pliant.ir.bitwidths import FULL_BITS
from pliant.ir.partition import Partition, Share
from pliant.models.encoder.bert import Bert
from pliant.models.encoder.encoder_directory import shapes_of
from pliant.models.encoder.encoder_source import Encoder
from pliant.models.hf.checkpoint import open_checkpoint
from pliant.plan.split.stage_graphs import weight_bytes
from pliant.store.build import build as build_store
from pliant.store.store_encoder import open_stored_encoder
from report import Report, options
from text_models import BERT, TextModel
from text_models import build as build_model

TOKENS, MBIT, PART = 128, 400, 12
PACES = {PRIMARY: 8.0, "second": 6.0, "third": 4.0}
"""How many times slower than this machine's core: the machine's noise is then small against a layer's
time.
"""
MOST_OFF, MOST_ERROR = 1.15, 1e-4
_VOCABULARY = 1000
_WARM = 4


def main() -> None:
    told = options(__doc__ or "")
    check_bed()
    n_layers, rounds = (3, 5) if told.quick else (12, 25)
    model = replace(BERT, layers=n_layers, vocabulary=_VOCABULARY)
    report = Report("cluster_coded", f"{model.name}, random weights, batch 1, {TOKENS} tokens", told)
    with TemporaryDirectory() as name:
        folder = Path(name)
        path = _store(model, folder)
        encoder = open_stored_encoder(path)
        found = _bounded(path, encoder, folder / "bounded", rounds)
        float_ratio = _beside_float32(path, encoder, found["partition"], folder / "beside", rounds)
    report.table("devices, each with the bound of a twelfth of the layers in float32", found["devices"])
    report.table("the run", [found["run"] | {"of float32 at the same split": str(float_ratio)}])
    ratio = found["run"]["measured / predicted"]
    report.claim(
        "cluster.coded",
        f"off by {found['error']:.1e} of the decoded store; most of a bound held {found['most']:.2f}; time "
        f"{ratio:.3f} of the prediction; {float_ratio} of float32's",
        f"off by {MOST_ERROR:g} at most, no bound passed, time within {MOST_OFF:g} of the prediction",
        found["error"] <= MOST_ERROR and found["most"] <= 1 and max(ratio, 1 / ratio) <= MOST_OFF,
        f"in {found['run']['bits']} bits; median of {rounds} runs; weights held, of each device's bound",
    )
    report.finish()


def _store(model: TextModel, folder: Path) -> Path:
    """A store of the model with a minimal tokenizer, since the bench feeds ids."""
    torch_model = build_model(model)
    torch_model.save_pretrained(folder / "model")
    words = {f"word{i}": i + 4 for i in range(_VOCABULARY - 4)} | {
        word: i for i, word in enumerate(("[PAD]", "[UNK]", "[CLS]", "[SEP]"))
    }
    made = tokenizers.Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    ends = [("[CLS]", 2), ("[SEP]", 3)]
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ends
    )
    made.save(str(folder / "model" / "tokenizer.json"))
    return build_store(open_checkpoint(folder / "model"), folder / "store")


def _bounded(path: Path, encoder: Encoder, folder: Path, rounds: int) -> dict[str, Any]:
    """Devices with a memory limit: their memory, their times, and the error of the answer."""
    spec = encoder.spec
    alone = Partition("ws", PRIMARY, (Share(PRIMARY, spec.n_heads, TOKENS),), TOKENS)
    bound = weight_bytes(spec, alone)[PRIMARY] // PART
    words = {name: ("--memory", str(bound), "--dilate-compute", str(pace)) for name, pace in PACES.items()}
    with open_bed(_devices(), str(path), folder, words=words, memory=bound, weights="auto") as bed:
        session = bed.session
        feeds = session.sample(TOKENS)
        idle = {device.name: _rss(device.processes) for device in bed.workers}
        for _ in range(_WARM):
            reply = session(feeds)
        replies = [session(feeds) for _ in range(rounds)]
        reply = replies[-1]
        own = session.memory.parts[0].measured_bytes
        loaded = {device.name: _rss(device.processes) - idle[device.name] for device in bed.workers}
    split = reply.details.partitions[1]
    planned = weight_bytes(spec, split)
    bits = min(split.bits)
    exact, full = (_reference(path, feeds, k) for k in (bits, FULL_BITS))
    answer = reply.outputs["vector"][0]
    rows = [
        {
            "device": share.device,
            "slower": PACES[share.device],
            "heads": share.heads,
            "rows": share.rows,
            "columns": share.columns,
            "bound MB": bound / 1e6,
            "weights planned MB": planned[share.device] / 1e6,
            "weights held MB": own / 1e6 if share.device == PRIMARY else None,
            "process grew by MB": loaded[share.device] / 1e6 if share.device in loaded else None,
        }
        for share in split.shares
    ]
    ratios = [one.details.run_s / one.details.predicted_s for one in replies]
    run = {
        "mode": split.mode,
        "bits": " ".join(map(str, sorted(set(split.bits)))),
        "predicted ms": median(one.details.predicted_s for one in replies) * 1e3,
        "measured ms": median(one.details.run_s for one in replies) * 1e3,
        "measured / predicted": median(ratios),
        "off the decoded store": float(np.abs(answer - exact).max()),
        "the bits' own error": float(np.abs(exact - full).max()),
        "weights in float32 MB": PART * bound / 1e6,
        "weights of the plan MB": sum(planned.values()) / 1e6,
    }
    scale = float(np.abs(exact).max())
    most = max(own, *planned.values()) / bound
    error = float(np.abs(answer - exact).max()) / scale
    return {"devices": rows, "run": run, "partition": split, "error": error, "most": most}


def _beside_float32(path: Path, encoder: Encoder, split: Partition, folder: Path, rounds: int) -> Any:
    """Seconds in codes over seconds in float32, with the same shares, interleaved, without a memory limit."""
    ways = {"codes": split, "float32": replace(split, bits=())}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    with open_rig(_devices(), str(path), encoder, folder, TOKENS) as rig:
        for turn in range(rounds + _WARM):
            for name in list(ways)[:: 1 if turn % 2 else -1]:
                took_s = rig.run(ways[name]).seconds
                seconds[name] += [took_s] if turn >= _WARM else []
    return paired(seconds["codes"], seconds["float32"])


def _devices() -> list[DeviceSpec]:
    return [DeviceSpec(name, slower=pace, bandwidth_Bps=rate(f"{MBIT}Mbit")) for name, pace in PACES.items()]


def _rss(processes: tuple[int, ...]) -> int:
    return sum(psutil.Process(number).memory_info().rss for number in processes)


def _reference(path: Path, feeds: Mapping[str, np.ndarray], bits: int) -> np.ndarray:
    """The pooled vector of transformers' BERT in float64, on the store decoded at so many bits."""
    encoder = open_stored_encoder(path, bits=bits)
    family = encoder.family
    assert isinstance(family, Bert), family
    model = build_model(replace(BERT, layers=encoder.spec.n_layers, vocabulary=_VOCABULARY)).double()
    known = model.state_dict()
    state = {
        next(x for x in (saved, saved.removeprefix("bert.")) if x in known): torch.from_numpy(
            np.array(encoder.tensor(name), np.float64)
        )
        for name in shapes_of(family)
        for saved in family.saved_names(name)
        if {saved, saved.removeprefix("bert.")} & known.keys()
    }
    assert len(state) == len(known) - sum("position_ids" in name for name in known), known.keys() - state
    model.load_state_dict(state, strict=False)
    with torch.inference_mode():
        ids = torch.from_numpy(np.array(feeds["ids"], np.int64))
        hidden: np.ndarray = model(ids).last_hidden_state[0].numpy()
    head = family.model.head
    vector: np.ndarray = hidden[0] if head.pooling == "cls" else hidden.mean(0)
    return vector / np.linalg.norm(vector) if head.is_normalized else vector


if __name__ == "__main__":
    main()
