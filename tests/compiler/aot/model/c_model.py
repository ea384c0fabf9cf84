"""A C library of a model, called from Python as its header has it."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

_U64, _U32 = ctypes.c_uint64, ctypes.c_uint32


class Error(ctypes.Structure):
    _fields_ = (("code", ctypes.c_int), ("message", ctypes.c_char * 244))


class Options(ctypes.Structure):
    _fields_ = (("n_threads", ctypes.c_int), ("best_effort", ctypes.c_int))


class _Answer(ctypes.Structure):
    _fields_ = (
        ("label", ctypes.c_char_p), ("label_index", ctypes.c_int), ("score", ctypes.c_float),
        ("numbers", ctypes.c_void_p), ("bits", ctypes.c_void_p), ("n_tokens", _U32), ("n_layers", _U32),
        ("width", _U32), ("target_us", _U64), ("predicted_us", _U64), ("elapsed_us", _U64),
        ("read_bytes", _U64), ("met", ctypes.c_int), ("error", Error),
    )  # fmt: skip


class About(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p), ("n_numbers", _U32), ("n_labels", _U32), ("labels", ctypes.c_void_p),
        ("most_tokens", _U32), ("n_layers", _U32), ("n_slices", _U32), ("n_targets", _U32),
        ("targets_us", ctypes.POINTER(_U64)), ("preload_bytes", _U64), ("working_bytes", _U64),
        ("arena_bytes", _U64), ("tables_bytes", _U64), ("scratch_bytes", _U64), ("is_direct", ctypes.c_int),
        ("has_text", ctypes.c_int),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class CAnswer:
    code: int
    message: str
    label: str | None
    score: float
    numbers: np.ndarray
    bits: np.ndarray
    n_tokens: int
    target_us: int
    elapsed_us: int
    read_bytes: int
    met: bool


class CModel:
    """An open model; close it. `failure` is the code and message of what could not be opened."""

    def __init__(self, library: Path, directory: Path, n_threads: int = 0, best_effort: bool = False) -> None:
        self._c = ctypes.CDLL(str(library))
        self._c.pliant_model_open.restype = ctypes.c_void_p
        self._c.pliant_model_about.restype = ctypes.POINTER(About)
        error, options = Error(), Options(n_threads, best_effort)
        at = self._c.pliant_model_open(str(directory).encode(), ctypes.byref(options), ctypes.byref(error))
        self._model = ctypes.c_void_p(at)
        self.failure = (error.code, error.message.decode(errors="replace"))
        if at:
            self.about = self._c.pliant_model_about(self._model).contents

    def __enter__(self) -> "CModel":
        assert self._model, self.failure
        return self

    def __exit__(self, *_: object) -> None:
        self._c.pliant_model_close(self._model)

    def run(self, text: bytes | str, target_us: int = 0) -> CAnswer:
        given = text.encode() if isinstance(text, str) else text
        return self._answer(lambda a: self._c.pliant_model_run(self._model, given, _U64(target_us), a))

    def run_ids(self, ids: Sequence[int], target_us: int = 0, types: Sequence[int] | None = None) -> CAnswer:
        given = np.array(ids, np.int32)
        kinds = None if types is None else np.array(types, np.int32)
        at = None if kinds is None else ctypes.c_void_p(kinds.ctypes.data)
        return self._answer(
            lambda a: self._c.pliant_model_run_ids(
                self._model, ctypes.c_void_p(given.ctypes.data), at, _U32(len(given)), _U64(target_us), a
            )
        )

    def encode(self, text: bytes, room: int = 4096) -> tuple[int, list[int]]:
        """Code and ids."""
        ids, n, error = np.zeros(room, np.int32), _U32(), Error()
        code = self._c.pliant_model_encode(
            self._model, text, ctypes.c_size_t(len(text)), ctypes.c_void_p(ids.ctypes.data), _U32(room),
            ctypes.byref(n), ctypes.byref(error),
        )  # fmt: skip
        return code, ids[: n.value].tolist()

    def _answer(self, call) -> CAnswer:  # type: ignore[no-untyped-def]
        about = self.about
        numbers = np.full(about.n_numbers, np.nan, np.float32)
        bits = np.zeros((max(about.n_layers, 1), max(about.n_slices, 1)), np.uint8)
        a = _Answer(numbers=numbers.ctypes.data, bits=bits.ctypes.data)
        code = call(ctypes.byref(a))
        assert code == a.error.code
        label = a.label.decode() if a.label else None
        return CAnswer(
            code, a.error.message.decode(errors="replace"), label, a.score, numbers, bits, a.n_tokens,
            a.target_us, a.elapsed_us, a.read_bytes, bool(a.met),
        )  # fmt: skip
