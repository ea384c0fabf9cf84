"""Bodies that travel compressed, both ways: what they are, what they may become, and who gets none."""

import gzip
import zlib
from collections.abc import Callable, Iterator

import httpx
import pytest

from pliant.errors import InputError
from pliant.serve.http.content_coding import LEAST_BYTES, Decoder
from pliant.serve.http.limits import Limits
from pliant.serve.page.page_routes import EVENTS_PATH
from tests.serve.models import Upper
from tests.serve.nodes import PATIENCE_S, Running, asking, running

INFER = "/v2/models/upper/infer"
MOST = 1 << 20
PACKS = {"gzip": gzip.compress, "x-gzip": gzip.compress, "GZip": gzip.compress, "deflate": zlib.compress}


@pytest.fixture(scope="module")
def node() -> Iterator[Running]:
    limits = Limits(body_bytes=MOST, buffer_bytes=2 * MOST, client_buffer_bytes=2 * MOST)
    with running(Upper(), limits=limits) as run:
        yield run


@pytest.fixture
def client(node: Running) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=node.url, timeout=PATIENCE_S) as client:
        yield client


def held(node: Running) -> float:
    """Bytes of bodies that the node holds, as its metrics say."""
    text = httpx.get(f"{node.url}/metrics", timeout=PATIENCE_S).text
    (line,) = [x for x in text.splitlines() if x.startswith("pliant_body_bytes")]
    return float(line.split()[-1])


@pytest.mark.parametrize("coding", sorted(PACKS))
def test_a_packed_request_is_read(client: httpx.Client, coding: str) -> None:
    """In one part, and in parts that cut it anywhere."""
    packed = PACKS[coding](asking("grown"))
    whole = client.post(INFER, content=packed, headers={"content-encoding": coding})
    parts = client.post(
        INFER,
        content=(packed[i : i + 7] for i in range(0, len(packed), 7)),
        headers={"content-encoding": coding},
    )
    for response in (whole, parts):
        assert response.json()["outputs"][0]["data"] == ["GROWN"]


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_a_bomb_is_refused_at_the_limit(node: Running, client: httpx.Client, coding: str) -> None:
    """256 MB in 256 kB, which a plain body could not bring; up to the limit the same body is read."""
    bomb = PACKS[coding](bytes(256 * MOST))
    assert len(bomb) < MOST
    refused = client.post(INFER, content=bomb, headers={"content-encoding": coding})
    assert refused.status_code == 413
    assert f"longer than {MOST} bytes" in refused.json()["error"]
    fits = PACKS[coding](asking("a").ljust(MOST))
    assert client.post(INFER, content=fits, headers={"content-encoding": coding}).status_code == 200
    over = PACKS[coding](asking("a").ljust(MOST + 1))
    assert client.post(INFER, content=over, headers={"content-encoding": coding}).status_code == 413
    assert held(node) == 0


def test_no_piece_of_a_bomb_is_large() -> None:
    """What is decompressed at once is bounded, however much it would be: memory follows the limit."""
    pieces = Decoder("gzip").pieces(gzip.compress(bytes(64 * MOST)))
    sizes = [len(piece) for piece in pieces]
    assert sum(sizes) == 64 * MOST
    assert max(sizes) <= 1 << 18


@pytest.mark.parametrize("n_bytes", [0, 1, (1 << 18) - 1, 1 << 18, (1 << 18) + 1, 3 << 18])
@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_a_body_at_the_edge_of_a_piece_is_whole(coding: str, n_bytes: int) -> None:
    """The stream may hold back its last bytes when a piece is full."""
    content, decoder = bytes(n_bytes), Decoder(coding)
    packed = PACKS[coding](content)
    found = [piece for at in range(len(packed)) for piece in decoder.pieces(packed[at : at + 1])]
    decoder.check_end()
    assert b"".join(found) == content


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        (lambda packed: b"plain", "is not valid gzip data"),
        (lambda packed: packed[:-4], "cut off"),
        (lambda packed: packed[:-8] + bytes(8), "is not valid gzip data"),
        (lambda packed: packed + packed, "more follows"),
        (lambda packed: b"", "cut off"),
    ],
    ids=["plain", "cut", "checksum", "two", "empty"],
)
def test_broken_data_are_refused(
    node: Running, client: httpx.Client, broken: Callable[[bytes], bytes], why: str
) -> None:
    """With the reason, and the connection answers the next request."""
    content = broken(gzip.compress(asking("a")))
    response = client.post(INFER, content=content, headers={"content-encoding": "gzip"})
    assert response.status_code == 400
    assert why in response.json()["error"]
    assert client.post(INFER, content=asking("next")).status_code == 200
    assert held(node) == 0


def test_more_behind_the_end_is_refused_in_a_part_of_its_own() -> None:
    """A coded body is one stream: empty ones behind it would take time and bring nothing."""
    decoder = Decoder("gzip")
    assert list(decoder.pieces(gzip.compress(b"a"))) == [b"a"]
    with pytest.raises(InputError, match="more follows"):
        list(decoder.pieces(b"x"))


@pytest.mark.parametrize(
    ("accepts", "coding"),
    [
        ("gzip", "gzip"),
        ("br, gzip;q=0.5", "gzip"),
        ("gzip;q=0", None),
        ("br, gzip; q=0.0, *", None),
        ("identity", None),
        ("deflate", "deflate"),
        ("gzip;q=0, deflate", "deflate"),
        ("deflate;q=0", None),
        ("", None),
    ],
)
def test_long_answers_are_packed_for_who_accepts_it(
    client: httpx.Client, accepts: str, coding: str | None
) -> None:
    """And no short ones; errors and metrics as well as answers of models."""
    headers = {"accept-encoding": accepts}
    text = "word " * 199
    long = client.post(INFER, content=asking(text), headers=headers)
    assert long.json()["outputs"][0]["data"] == [text.upper()]
    assert long.headers.get("content-encoding") == coding
    assert long.headers.get("vary") == "Accept-Encoding", "a cache keeps one answer for each coding"
    assert client.get("/metrics", headers=headers).headers.get("content-encoding") == coding
    short = client.post(INFER, content=asking("a"), headers=headers)
    assert {"content-encoding", "vary"}.isdisjoint(short.headers)
    assert len(short.content) < LEAST_BYTES


def test_all_lines_of_accept_encoding_are_read(client: httpx.Client) -> None:
    """A list may be divided among lines (RFC 9110, 5.3); only the first one counted."""
    lines = [("accept-encoding", "gzip;q=0"), ("accept-encoding", "deflate")]
    assert client.get("/metrics", headers=lines).headers.get("content-encoding") == "deflate"


def test_events_are_sent_as_they_come(client: httpx.Client) -> None:
    """A compressor would hold them back."""
    with client.stream("GET", EVENTS_PATH, headers={"accept-encoding": "gzip"}) as response:
        assert response.status_code == 200
        assert "content-encoding" not in response.headers
        assert next(response.iter_raw()).startswith(b"retry: ")
