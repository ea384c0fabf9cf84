"""`compute="auto"`: choose the arithmetic of a model's products by what its forms cost on this processor."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from pliant.errors import InputError
from pliant.ir.bitwidths import Weights
from pliant.models.encoder.encoder_graph import Precise
from pliant.plan.precision import choose_form
from pliant.run.array_sessions.measure_forms import forms_of, measure_forms
from pliant.run.array_sessions.onnx_session import OnnxSession
from pliant.run.graph.model_options import ModelOptions
from pliant.run.session.feeds import GivenFeeds

OpenGraph = Callable[[ModelOptions], OnnxSession]


def options_of_fastest(
    options: ModelOptions, open_with: OpenGraph, examples: Sequence[GivenFeeds], tolerance: float
) -> ModelOptions:
    """`options` with the fastest form whose answers to `examples` are within `tolerance` of float32's.

    float32 stands for the weights that were asked for; where the bits are chosen as well, for the model's
    own. While forms are measured, two sessions are in memory, whatever the bound of `options`.

    Raises InputError without examples, and where no form is within the tolerance.
    """
    if not examples:
        raise InputError(
            "compute='auto' compares the forms' answers: give examples=[feeds, ...], some inputs of the "
            "model, or name the arithmetic: 'fp32', 'bf16' or 'int8'."
        )
    own: Weights = "fp32" if options.weights == "auto" else options.weights
    forms = forms_of(options.weights, is_bounded=options.memory_bytes is not None)

    def open_form(weights: Weights, compute: Precise) -> OnnxSession:
        return open_with(replace(options, weights=weights, compute=compute))

    with open_with(replace(options, weights=own, compute="fp32", memory_bytes=None)) as reference:
        found = measure_forms(forms, reference, open_form, examples)
    plural = "" if len(examples) == 1 else "s"
    measure = f"rms of the difference from fp32 over rms of the answer, {len(examples)} example{plural}"
    choice = choose_form(found, tolerance, measure)
    chosen = choice.chosen
    return replace(options, weights=chosen.weights, compute=chosen.compute, precision=choice)
