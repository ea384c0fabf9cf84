"""`compute="auto"`: choose the arithmetic of an ONNX model's products by measured time and error."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from pliant.errors import InputError
from pliant.ir.bitwidths import WeightFormat
from pliant.models.encoder.encoder_graph import ComputeDtype
from pliant.plan.precision import choose_form
from pliant.run.array_sessions.measure_forms import list_forms, measure_forms
from pliant.run.array_sessions.onnx_session import OnnxSession
from pliant.run.graph.example_moments import convert_examples
from pliant.run.graph.model_options import ModelOptions
from pliant.run.session.feeds import FeedsLike

OpenGraph = Callable[[ModelOptions], OnnxSession]


def choose_precision(
    options: ModelOptions, open_with: OpenGraph, examples: Sequence[FeedsLike], tolerance: float
) -> ModelOptions:
    """Return `options` with the fastest form whose answers to `examples` are within `tolerance` of float32.

    The reference is float32 arithmetic with the requested weights, or with the model's own weights if the
    bits are chosen as well. During the measurement two sessions are in memory, whatever the limit in
    `options`.

    Raises InputError without examples, and if no form is within the tolerance.
    """
    if not examples:
        raise InputError(
            "compute='auto' compares answers to examples: give examples=[feeds, ...], some inputs of the "
            "model, or name the arithmetic: 'fp32', 'bf16' or 'int8'."
        )
    own: WeightFormat = "fp32" if options.weights == "auto" else options.weights
    forms = list_forms(options.weights, is_bounded=options.memory_bytes is not None)

    def open_form(weights: WeightFormat, compute: ComputeDtype) -> OnnxSession:
        return open_with(replace(options, weights=weights, compute=compute))

    with open_with(replace(options, weights=own, compute="fp32", memory_bytes=None)) as reference:
        found = measure_forms(forms, reference, open_form, convert_examples(reference.inputs, examples))
    plural = "" if len(examples) == 1 else "s"
    measure = f"rms of the difference from fp32 over rms of the answer, {len(examples)} example{plural}"
    choice = choose_form(found, tolerance, measure)
    chosen = choice.chosen
    return replace(options, weights=chosen.weights, compute=chosen.compute, precision=choice)
