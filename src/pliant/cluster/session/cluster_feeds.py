"""The feeds of a cluster's session: a text, or arrays as the encoder reads them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

import numpy as np

from pliant.errors import InputError
from pliant.ir.port import Port
from pliant.models.encoder.encoder_architecture import Feeds
from pliant.models.encoder.encoder_source import Encoder
from pliant.models.tokenizer import TokenizedInput
from pliant.run.session.feeds import FeedsLike, convert_feed
from pliant.run.session.text_feeds import text_of
from pliant.run.session.text_session import TEXT, TextSession

TimedFeeds = Sequence[tuple[Feeds, float]]
"""Feeds of several inputs, each with the clock time at which it was asked for."""
_TYPES = Port("types", "int64", (1, None))


def feeds_of(encoded: TokenizedInput) -> Feeds:
    """Return the tokens of a text."""
    return {"ids": encoded.ids, "types": encoded.types}


def input_ports(encoder: Encoder) -> tuple[Port, ...]:
    """Return the inputs of a session: a text if the encoder reads texts, and arrays."""
    arrays = tuple(replace(port, dims=(1, *(port.dims or ()))) for port in encoder.inputs)
    return (TEXT, *arrays) if encoder.reads_text else arrays


def open_items(port: Port, longest: Mapping[str, np.ndarray]) -> int:
    """Return the product of the open dimensions of `port` in the feeds of the longest input."""
    sizes = zip(longest[port.name].shape, port.dims or (), strict=True)
    return int(prod(n for n, dim in sizes if dim is None))


def read_feeds(session: TextSession[object], given: str | FeedsLike, pair: str | None = None) -> Feeds:
    """Return the encoder's feeds, without the first dimension. Raises InputError that names the misfit."""
    if not isinstance(given, Mapping):
        return feeds_of(session.encode(given, pair))
    if pair is not None:
        raise InputError("`pair` belongs to a text: feed `types` beside `ids` instead.")
    if given.keys() == {"text"} and TEXT in session.inputs:
        text = given["text"]
        return feeds_of(session.encode(text if isinstance(text, str) else text_of(given, session.max_length)))
    ports = {port.name: port for port in (*session.inputs, _TYPES) if port is not TEXT}
    if not given or not given.keys() <= ports.keys():
        names = " or ".join(port.name for port in session.inputs)
        raise InputError(f"{session.name} reads {names}; the feeds are {', '.join(given) or 'none'}.")
    feeds = {}
    for name, value in given.items():
        array, port = convert_feed(ports[name], value), ports[name]
        if array.ndim != len(port.dims or ()) or len(array) != 1:
            raise InputError(f"`{name}` is {list(array.shape)}; give {port}, one input at a time.")
        feeds[name] = array[0]
    return feeds
