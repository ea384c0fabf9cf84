"""Encode activations for transfer: float32, float16, or int8 with one scale per row.

float16 keeps 11 significant bits; int8 has a step of 1/127 of the row's largest magnitude. Both are exact
for zeros.
"""

from dataclasses import replace
from typing import Literal, assert_never

import numpy as np

from pliant.arrays import Float32
from pliant.errors import InputError
from pliant.ir.capability import Interface, Links
from pliant.ir.link import Link
from pliant.ir.program import Exchange, Segment, Step

Coding = Literal["fp32", "fp16", "int8"]

_LARGEST_HALF = 65504.0
_A_ROW = 256
"""Typical number of values in an exchanged row, used to average the cost of the int8 scale."""


def coded_bytes(shape: tuple[int, int], coding: Coding) -> int:
    """Return the encoded size, in bytes, of a float32 array [rows, columns]."""
    rows, columns = shape
    match coding:
        case "fp32":
            return 4 * rows * columns
        case "fp16":
            return 2 * rows * columns
        case "int8":
            return rows * (4 + columns)
        case _:
            assert_never(coding)


def encode(values: Float32[np.ndarray, "rows columns"], coding: Coding) -> np.ndarray:
    """Return `values` encoded as one contiguous array; contiguous float32 is returned without a copy.

    Raises InputError for float16 if a value exceeds its range.
    """
    match coding:
        case "fp32":
            return np.ascontiguousarray(values)
        case "fp16":
            return _halves(values)
        case "int8":
            return _bytes_by_row(values)
        case _:
            assert_never(coding)


def decode(data: np.ndarray, coding: Coding, into: Float32[np.ndarray, "rows columns"]) -> None:
    """Decode `data` (uint8 [coded_bytes], made by `encode`) into `into`, a view that may be strided."""
    match coding:
        case "fp32":
            into[...] = data.view(np.float32).reshape(into.shape)
        case "fp16":
            into[...] = data.view(np.float16).reshape(into.shape)
        case "int8":
            rows, columns = into.shape
            scales = data[: 4 * rows].view(np.float32)
            codes = data[4 * rows :].view(np.int8).reshape(rows, columns)
            np.multiply(codes, scales[:, None], out=into)
        case _:
            assert_never(coding)


def with_coded_bytes(segment: Segment, coding: Coding) -> Segment:
    """Return the segment with the encoded size, in bytes, on each of its exchanges."""
    if coding == "fp32":
        return segment
    return replace(segment, steps=tuple(_step_as_coded(step, coding) for step in segment.steps))


def scale_links(links: Links, coding: Coding) -> Links:
    """Return links scaled up by the compression ratio, for a planner that assumes 4 bytes per value."""
    faster = coded_bytes((1, _A_ROW), "fp32") / coded_bytes((1, _A_ROW), coding)
    if faster == 1.0:
        return links
    interfaces = {
        name: Interface(one.egress_Bps * faster, one.ingress_Bps * faster)
        for name, one in links.interfaces.items()
    }
    pairs = {ends: Link(one.latency_s, one.bandwidth_Bps * faster) for ends, one in links.pairs.items()}
    return Links(interfaces, links.latency_s, pairs)


def _step_as_coded(step: Step, coding: Coding) -> Step:
    work = step.work
    if not isinstance(work, Exchange) or work.part is None:
        return step
    n_bytes = coded_bytes((work.part.n_rows, work.part.n_columns), coding)
    return replace(step, work=replace(work, n_bytes=n_bytes))


def _halves(values: np.ndarray) -> np.ndarray:
    largest = float(np.abs(values).max(initial=0.0))
    if largest > _LARGEST_HALF:
        raise InputError(
            f"an activation of {largest:.3g} does not fit float16, which ends at 65504: "
            "exchange fp32 or int8 with this model."
        )
    return np.ascontiguousarray(values, dtype=np.float16)


def _bytes_by_row(values: np.ndarray) -> np.ndarray:
    rows, columns = values.shape
    data = np.empty(coded_bytes((rows, columns), "int8"), dtype=np.uint8)
    scales = data[: 4 * rows].view(np.float32)
    np.abs(values).max(axis=1, initial=0.0, out=scales)
    scales /= 127.0
    inverse = np.divide(1.0, scales, out=np.zeros_like(scales), where=scales > 0)
    codes = data[4 * rows :].view(np.int8).reshape(rows, columns)
    with np.errstate(invalid="ignore"):  # a row with a NaN gets a NaN scale, so the receiver detects it
        np.rint(values * inverse[:, None], out=codes, casting="unsafe")
    return data
