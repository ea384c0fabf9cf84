"""Match the stored tensors of a recurrent model to their roles, independent of module names.

Layers are found by torch's name suffixes; the table of vectors and the last linear layer by their shapes,
unless they are called `embedding` and `classifier`.
"""

import re
from collections.abc import Mapping, Sequence

from pliant.errors import ModelError
from pliant.models.hf.safetensors_file import FLOATS, StoredTensor
from pliant.models.recurrent.recurrent_spec import CLASSIFIER, EMBEDDING, RecurrentSpec

_FIRST = "weight_ih_l0"
_OF_LAYERS = re.compile(r"(weight|bias)_(ih|hh|hr)_l\d+(_reverse)?")


def match_tensors(spec: RecurrentSpec, present: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """Every tensor of `spec` by its canonical name.

    Raises ModelError naming all tensors that are missing, or of the wrong shape or type, and any that the
    configuration does not use, since ignoring them would change the answer.
    """
    names = _names(spec, present)
    wanted = spec.tensors()
    missing = sorted(names[name] for name in wanted if names[name] not in present)
    if missing:
        raise ModelError(f"it lacks {len(missing)} tensors: {', '.join(missing)}.")
    found = {name: present[names[name]] for name in wanted}
    wrong = [
        f"{tensor.name} is {tensor.dtype}{list(tensor.shape)}, not floats of {list(wanted[name])}"
        for name, tensor in found.items()
        if tensor.shape != wanted[name] or tensor.dtype not in FLOATS
    ]
    if wrong:
        raise ModelError(f"tensors do not match its config.json: {'; '.join(wrong)}.")
    strangers = sorted(present.keys() - {tensor.name for tensor in found.values()})
    if strangers:
        raise ModelError(f"its config.json has no place for the tensors {', '.join(strangers)}.")
    return found


def _names(spec: RecurrentSpec, present: Mapping[str, StoredTensor]) -> dict[str, str]:
    """The stored name of each canonical name; the canonical name itself if no match is found."""
    wanted = spec.tensors()
    prefix = _prefix(present)
    rest = [name for name in present if not _OF_LAYERS.fullmatch(name.removeprefix(prefix))]
    table = _match_shape(EMBEDDING, rest, present, wanted[EMBEDDING])
    names = {name: name.replace("rnn.", prefix, 1) for name in wanted if name.startswith("rnn.")}
    names[EMBEDDING] = table
    if spec.labels is not None:
        weight = f"{CLASSIFIER}.weight"
        last = _match_shape(weight, [n for n in rest if n != table], present, wanted[weight])
        names |= {weight: last, f"{CLASSIFIER}.bias": f"{last.removesuffix('.weight')}.bias"}
    return names


def _prefix(present: Mapping[str, StoredTensor]) -> str:
    """The prefix of the layers' names."""
    found = sorted(name.removesuffix(_FIRST) for name in present if name.endswith(_FIRST))
    if len(found) > 1:
        named = ", ".join(f"{prefix}{_FIRST}" for prefix in found)
        raise ModelError(f"it has several recurrent modules: {named}; one with all its layers is run.")
    return found[0] if found else "rnn."


def _match_shape(
    canonical: str, names: Sequence[str], present: Mapping[str, StoredTensor], shape: tuple[int, ...]
) -> str:
    """The only tensor of a shape, unless one has the canonical name."""
    fitting = [name for name in names if present[name].shape == shape]
    return fitting[0] if canonical not in present and len(fitting) == 1 else canonical
