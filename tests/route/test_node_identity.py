"""Whether two nodes hold the same model, by what they say in headers."""

import pytest

from pliant.errors import RouteError
from pliant.ir.envelope import VERSION
from pliant.route.node_identity import (
    MODEL_HEADER,
    PROTOCOL_HEADER,
    Identity,
    mismatch,
    read_identity,
)

MINE = Identity("a" * 64, "1.2.3")


def test_an_identity_comes_back_from_its_headers() -> None:
    """What one node writes, the next reads."""
    assert read_identity(MINE.headers()) == MINE


def test_a_node_that_says_nothing_is_of_the_first_protocol() -> None:
    """It had no such headers; what else it means by its messages is too long ago."""
    old = read_identity({})
    assert old == Identity(None, None, 1)
    reason = mismatch(MINE, old)
    assert reason == (
        f"pliant of unknown version speaks version 1 of the protocol, this device version {VERSION}: "
        "versions may differ by one. Install the same pliant on both"
    )


def test_another_content_hash_is_a_mismatch_and_both_are_named() -> None:
    """A model of the same name may give the opposite answer."""
    reason = mismatch(MINE, Identity("b" * 64, "1.2.3"))
    assert reason is not None
    assert "bbbbbbbbbbbb" in reason
    assert "aaaaaaaaaaaa" in reason


def test_another_version_of_the_software_is_no_mismatch() -> None:
    """Otherwise no node could be upgraded while others serve."""
    assert mismatch(MINE, Identity("a" * 64, "9.0")) is None


@pytest.mark.parametrize(("step", "fits"), [(-2, False), (-1, True), (0, True), (1, True), (2, False)])
def test_neighbouring_protocols_fit_and_others_do_not(step: int, fits: bool) -> None:
    """One step may be crossed at a time; further apart, fields may have changed their meaning."""
    reason = mismatch(MINE, Identity("a" * 64, "9.0", VERSION + step))
    assert (reason is None) is fits
    said = f"pliant 9.0 speaks version {VERSION + step} of the protocol, this device version {VERSION}: "
    assert fits or (reason or "").startswith(said)


@pytest.mark.parametrize("headers", [{MODEL_HEADER: "a\x1b[2J"}, {MODEL_HEADER: ""}, {PROTOCOL_HEADER: "-1"}])
def test_an_identity_that_cannot_be_is_refused(headers: dict[str, str]) -> None:
    """It is shown in logs and tables, so it must not carry anything but letters and digits."""
    with pytest.raises(RouteError):
        read_identity(headers)
