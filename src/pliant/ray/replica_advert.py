"""The advert of a replica to the routers: latency by input length, and input length by bytes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from pliant.errors import PeerCurveError
from pliant.ir.curve import Curve, parse_curve, thin
from pliant.run.session.session import Session
from pliant.run.session.text_feeds import as_bytes
from pliant.run.session.text_session import TextSession

_MAX_POINTS = 16
_SAMPLE = "The film is a charming and often affecting journey, and its cast never loses its way for long. "
_SHORT, _LONG = 1, 64
EMPTY_TEXT = b'{"inputs":[{"name":"text","shape":[1],"datatype":"BYTES","data":[""]}]}'
"""The body of an HTTP request for the text of no characters."""


@dataclass(frozen=True, slots=True)
class InputSize:
    """A linear estimate of input length from JSON bytes: `fixed` bytes, and `per_item` for each item.

    A router sees the bytes of a request but not its tokens. The estimate is clamped to `least` .. `most`
    items.
    """

    fixed: float
    per_item: float
    least: int
    most: int

    def length(self, n_bytes: int) -> int:
        """The estimated number of items of an input of `n_bytes`."""
        items = (n_bytes - self.fixed) / self.per_item if self.per_item > 0 else 0.0
        return int(min(max(items, self.least), self.most))


@dataclass(frozen=True, slots=True)
class ReplicaAdvert:
    """Median seconds by input length of a replica's most accurate submodel."""

    curve: Curve
    size: InputSize

    def encode(self) -> dict[str, Any]:
        """Encode as a dict of plain values, which Ray can transport."""
        size = self.size
        return {
            "curve": [list(point) for point in self.curve.points],
            "size": [size.fixed, size.per_item, size.least, size.most],
        }


def decode_advert(fields: Mapping[str, Any]) -> ReplicaAdvert | None:
    """Decode an advert; None if it is missing or invalid."""
    try:
        fixed, per_item, least, most = fields["size"]
        size = InputSize(float(fixed), float(per_item), int(least), int(most))
        return ReplicaAdvert(parse_curve(fields["curve"]), size)
    except (KeyError, TypeError, ValueError, PeerCurveError):
        return None


def advert_of(session: Session[Any], size: InputSize) -> ReplicaAdvert:
    """The current advert of `session`.

    Limits of memory are left out: lengths are guessed from bytes, and a body may hold many short texts.
    """
    return ReplicaAdvert(_short(Curve(session.levels()[-1].answered_points)), size)


def input_size(session: Session[Any]) -> InputSize:
    """Fit bytes of JSON to length with an English sample or sample arrays. Runs no inference."""
    if isinstance(session, TextSession):
        n = session.request({"text": as_bytes(_SAMPLE)}).length
        return InputSize(len(EMPTY_TEXT), len(_SAMPLE) / n, 1, session.max_length)
    (short, n_short), (long, n_long) = (_sampled(session, n) for n in (_SHORT, _LONG))
    per_item = (n_long - n_short) / (long - short) if long > short else 0.0
    return InputSize(n_short - per_item * short, per_item, short, session.max_length)


def _sampled(session: Session[Any], length: int) -> tuple[int, int]:
    """Return the length and JSON bytes of a sample input of about `length` items."""
    feeds = session.sample(min(length, session.max_length))
    n_bytes = len(msgspec.json.encode({name: array.tolist() for name, array in feeds.items()}))
    return session.request(feeds).length, n_bytes


def _short(curve: Curve) -> Curve:
    """Reduce `curve` to a few points, at whole lengths."""
    points = {round(n): seconds for n, seconds in thin(curve, _MAX_POINTS).points}
    return Curve(tuple(points.items()))
