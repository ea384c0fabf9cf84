"""Rates of clients: what one may have, and that others and health are served meanwhile."""

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.errors import InputError, NodeError
from pliant.serve.access.access import AccessControl, AccessGrant, AccessRequest
from pliant.serve.access.rates import ClientRates, Rate, RateLimiter, client_at, parse_rates
from pliant.serve.access.security import AccessTokens
from tests.serve.models import Upper
from tests.serve.nodes import PATIENCE_S, asking, running

CLIENT, OTHER, PEER, OPERATOR = (
    "client-token-0123",
    "other-token-01234",
    "peer-token-0123456",
    "operator-token-01",
)
SELDOM = ClientRates(requests=Rate(1e-3, 3))
INFER = "/v2/models/upper/infer"


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_a_burst_is_let_in_and_then_the_rate() -> None:
    """The wait that is told is the one after which a request is let in, and not a moment sooner."""
    clock = Clock()
    limiter = RateLimiter(ClientRates(requests=Rate(2.0, 3)), clock)
    assert [limiter.count_request("a") for _ in range(3)] == [0.0] * 3
    wait_s = limiter.count_request("a")
    assert wait_s == pytest.approx(0.5)
    clock.now_s += 0.9 * wait_s
    assert limiter.count_request("a") == pytest.approx(0.05)
    clock.now_s += 0.1 * wait_s + 1e-9
    assert limiter.count_request("a") == 0.0
    assert limiter.count_request("b") == 0.0
    clock.now_s += 1e6
    assert [limiter.count_request("a") for _ in range(4)][:3] == [0.0] * 3


def test_bytes_make_a_debt_that_is_waited_for() -> None:
    """A body's length is known when it has come."""
    clock = Clock()
    limiter = RateLimiter(ClientRates(n_bytes=Rate(100.0, 50)), clock)
    assert limiter.count_request("a") == 0.0
    limiter.count_bytes("a", 1050)
    wait_s = limiter.count_request("a")
    assert wait_s == pytest.approx(10.0, rel=1e-2)
    clock.now_s += wait_s + 1e-9
    assert limiter.count_request("a") == 0.0


@given(
    st.lists(st.tuples(st.floats(0, 3), st.integers(0, 500)), min_size=1, max_size=60),
    st.floats(0.1, 50),
    st.integers(1, 20),
)
def test_no_client_takes_more_than_its_rate_allows(
    calls: list[tuple[float, int]], per_s: float, burst: int
) -> None:
    """Whatever it does: at most its burst and the rate, and of bytes what one request made a debt of."""
    clock = Clock()
    start_s = clock.now_s
    limiter = RateLimiter(ClientRates(Rate(per_s, burst), Rate(10 * per_s, 10 * burst)), clock)
    n = n_bytes = 0
    for after_s, size in calls:
        clock.now_s += after_s
        if limiter.count_request("a") == 0.0:
            limiter.count_bytes("a", size)
            n, n_bytes = n + 1, n_bytes + size
        passed_s = clock.now_s - start_s
        assert n <= burst + per_s * passed_s + 1e-6
        assert n_bytes <= 10 * (burst + per_s * passed_s) + 500


def test_clients_that_are_forgotten_take_no_memory() -> None:
    """Addresses are cheap."""
    limiter = RateLimiter(SELDOM, Clock())
    for i in range(20_000):
        limiter.count_request(f"{i}")
    assert limiter.n_clients <= 8192


@pytest.mark.parametrize(
    ("address", "client"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("", ""),
    ],
)
def test_a_client_of_ipv6_is_a_network(address: str, client: str) -> None:
    """Each has 2^64 addresses."""
    assert client_at(address) == client


@pytest.mark.parametrize("text", ["", "x", "0", "-1", "nan", "inf", "5:0", "5:x", ":5"])
def test_what_is_no_rate_is_refused(text: str) -> None:
    """A limit that lets nothing through would look like a node that is down."""
    with pytest.raises((NodeError, InputError)):
        parse_rates(text, None)
    with pytest.raises((NodeError, InputError)):
        parse_rates(None, text)


def test_rates_are_read_with_their_bursts() -> None:
    """A burst is one second's, but a request at least."""
    assert parse_rates("0.5", "10MB:20MB") == ClientRates(Rate(0.5, 1), Rate(1e7, 2e7))
    assert parse_rates("50:100", None) == ClientRates(Rate(50, 100))
    assert parse_rates(None, None) == ClientRates()


def shown(path: str, token: str | None = None, address: str = "10.0.0.1") -> AccessRequest:
    method = "POST" if path == INFER else "GET"
    return AccessRequest(method, path, () if token is None else (f"Bearer {token}",), address=address)


def test_who_a_client_is() -> None:
    """One token at all addresses, or an address, with whatever wrong tokens; no node and no operator."""
    access = AccessControl(AccessTokens([CLIENT, OTHER], [PEER], [OPERATOR]), SELDOM, Clock())

    def is_admitted(*args: str | None) -> bool:
        return isinstance(access.admit(shown(*args)), AccessGrant)  # type: ignore[arg-type]

    assert [is_admitted(INFER, CLIENT, f"10.0.0.{i}") for i in range(5)] == [True] * 3 + [False] * 2
    assert is_admitted(INFER, OTHER, "10.0.0.1")
    assert all(is_admitted("/v2/pliant/curve", PEER) for _ in range(9))
    assert all(is_admitted("/v2/pliant/peers", OPERATOR) for _ in range(9))
    guesses = [access.admit(shown(INFER, f"wrong-token-{i:010}", "10.9.9.9")) for i in range(5)]
    assert [guess.status for guess in guesses if not isinstance(guess, AccessGrant)] == [401] * 3 + [429] * 2
    assert all(is_admitted("/v2/health/live", None, "10.9.9.9") for _ in range(9))
    assert is_admitted(INFER, OTHER, "10.9.9.9")


def test_a_client_that_asks_too_often_is_told_when_to_come_again() -> None:
    """429 with Retry-After; others are served, and health is."""
    rates = ClientRates(requests=Rate(1e-3, 2))
    with (
        running(Upper(), tokens=(CLIENT, OTHER), rates=rates) as node,
        httpx.Client(timeout=PATIENCE_S) as http,
    ):

        def ask(token: str) -> httpx.Response:
            headers = {"authorization": f"Bearer {token}"}
            return http.post(f"{node.url}{INFER}", content=asking("a"), headers=headers)

        assert [ask(CLIENT).status_code for _ in range(2)] == [200, 200]
        refused = ask(CLIENT)
        assert refused.status_code == 429
        assert 900 <= int(refused.headers["retry-after"]) <= 1000
        assert "try again in" in refused.json()["error"]
        assert ask(OTHER).status_code == 200
        assert all(http.get(f"{node.url}/v2/health/ready").status_code == 200 for _ in range(20))
        assert CLIENT not in refused.text


def test_bytes_of_requests_and_answers_are_counted() -> None:
    """Of a body whose length is not said, too."""
    rates = ClientRates(n_bytes=Rate(1e-3, 2000))
    for content in (asking("a" * 900), iter([asking("a" * 900)])):
        with running(Upper(), rates=rates) as node, httpx.Client(timeout=PATIENCE_S) as http:
            statuses = [http.post(f"{node.url}{INFER}", content=content).status_code]
            statuses += [http.post(f"{node.url}{INFER}", content=asking("a")).status_code for _ in range(2)]
            assert statuses[0] == 200
            assert statuses[-1] == 429


def test_other_rates_hold_from_then_on_and_forgive_nothing() -> None:
    """What a client has left counts on, up to the new burst; a rate that is new begins with a whole one."""
    now = [0.0]
    limiter = RateLimiter(ClientRates(requests=Rate(1.0, 3.0)), lambda: now[0])
    assert [limiter.count_request("a") for _ in range(3)] == [0.0] * 3
    limiter.replace_rates(ClientRates(requests=Rate(2.0, 10.0)))
    assert limiter.count_request("a") == pytest.approx(0.5)
    now[0] = 0.5
    assert limiter.count_request("a") == 0.0
    limiter.replace_rates(ClientRates())
    assert [limiter.count_request("a") for _ in range(9)] == [0.0] * 9
    limiter.replace_rates(ClientRates(requests=Rate(1.0, 2.0)))
    assert [limiter.count_request("a") > 0.0 for _ in range(3)] == [False, False, True]
