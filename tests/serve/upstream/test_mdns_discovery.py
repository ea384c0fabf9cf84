"""Nodes that announce themselves by multicast DNS, and become upstreams of those that look for them."""

import secrets
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from pliant.errors import NodeError
from pliant.multicast import DiscoveredService
from pliant.route.node_identity import Identity
from pliant.serve.access.credentials import TokenFiles
from pliant.serve.access.security import ListenAddress, Tls, check_discovery
from pliant.serve.upstream.mdns_discovery import (
    SERVICE,
    Announcer,
    Discovery,
    announcing,
)
from tests.multicast import multicast as multicast
from tests.serve.liars import Liar
from tests.serve.models import Upper
from tests.serve.node.test_peers import OPERATOR, peers
from tests.serve.nodes import PATIENCE_S, Running, fixed, running
from tests.serve.test_routing import GOOD, HONEST, LATE, answer_of, metric, target_of, until

pytestmark = pytest.mark.usefixtures("lingering", "short_lived")

TOKEN, OTHER_TOKEN = "peer-token-012345", "peer-token-of-others"


@pytest.fixture
def short_lived(monkeypatch: pytest.MonkeyPatch) -> None:
    """A goodbye may be lost on a busy machine: what was announced then ends long before `until` gives up."""
    monkeypatch.setattr("pliant.multicast.TTL_S", 20)


def announcer(url: str = "http://127.0.0.1:9", tokens: tuple[str, ...] = (), **changes: Any) -> Announcer:
    said = {"name": "up", "model": "upper", "identity": Identity("content"), "run": "1"}
    return Announcer(url, tokens=tokens, **{**said, **changes})


def service(node: Announcer, name: str = "up", **changes: str) -> DiscoveredService:
    return DiscoveredService(f"{name}.{SERVICE}", ("127.0.0.1:9",), {**node.properties(), **changes})


class Heard:
    """A `Discovery` and what it said."""

    def __init__(self, tokens: tuple[str, ...] = (), is_loopback: bool = False, most: int = 8) -> None:
        self.joined: list[str] = []
        self.left: list[str] = []
        me = announcer("http://me:1", tokens, run="me")
        self.discovery = Discovery(me, self.joined.append, self.left.append, is_loopback, most)


def test_what_is_announced_joins_once_and_leaves_once() -> None:
    """By two networks, or under two names, it is still one URL."""
    heard, up = Heard(), announcer()
    for name in ("up", "up", "up-2"):
        heard.discovery.found(service(up, name))
    assert heard.joined == ["http://127.0.0.1:9"]
    heard.discovery.gone(f"up.{SERVICE}")
    assert not heard.left
    heard.discovery.gone(f"up-2.{SERVICE}")
    heard.discovery.gone(f"up-2.{SERVICE}")
    assert heard.left == ["http://127.0.0.1:9"]


def test_a_node_that_moves_leaves_one_url_and_joins_another() -> None:
    """It was started anew under its name, before the old announcement was forgotten."""
    heard = Heard()
    heard.discovery.found(service(announcer("http://127.0.0.1:9")))
    heard.discovery.found(service(announcer("http://127.0.0.1:10")))
    assert (heard.left, heard.joined) == (
        ["http://127.0.0.1:9"],
        ["http://127.0.0.1:9", "http://127.0.0.1:10"],
    )


@pytest.mark.parametrize(
    "found",
    [
        service(announcer(run="me")),
        service(announcer("http://me:1")),
        service(announcer(model="lower")),
        service(announcer(identity=Identity("other"))),
        service(announcer(), url="http://user@evil:1"),
        service(announcer(), url="ftp://evil"),
        service(announcer(), url="http://" + "a" * 300),
        DiscoveredService(f"x.{SERVICE}", (), {}),
    ],
)
def test_other_models_this_node_and_what_is_no_node_are_left_alone(found: DiscoveredService) -> None:
    """They would be pinged for ever."""
    heard = Heard()
    heard.discovery.found(found)
    assert not heard.joined


def test_who_cannot_prove_a_peer_token_is_never_called() -> None:
    """A ping shows the token, and a request the input: neither is for whoever says that he is a node."""
    heard, honest = Heard((TOKEN,)), announcer("http://a:1", (OTHER_TOKEN, TOKEN))
    proof = honest.properties()["proof"]
    assert TOKEN not in str(honest.properties())
    heard.discovery.found(service(announcer("http://evil:1"), "none"))
    heard.discovery.found(service(announcer("http://evil:1", (OTHER_TOKEN,)), "other"))
    heard.discovery.found(service(announcer("http://evil:1"), "stolen", proof=proof))
    heard.discovery.found(service(announcer("https://a:1"), "weaker", proof=proof))
    heard.discovery.found(service(announcer("http://evil:1"), "many", proof=f"{proof}," * 100))
    assert not heard.joined
    heard.discovery.found(service(honest))
    heard.discovery.found(service(announcer("http://a:1"), "repeated", proof=proof))
    assert heard.joined == ["http://a:1"], "a repeated announcement leads to the same node"


def test_an_open_node_on_loopback_finds_this_machine_alone() -> None:
    """A stranger on the network reaches the multicast socket all the same."""
    heard = Heard(is_loopback=True)
    for url in ("http://10.0.0.1:1", "http://gateway:1", "http://[fd00::1]:1"):
        heard.discovery.found(service(announcer(url), url[7:9]))
    assert not heard.joined
    heard.discovery.found(service(announcer("http://[::1]:1")))
    assert heard.joined == ["http://[::1]:1"]


def test_no_more_than_the_most_are_taken() -> None:
    """Each is pinged, and looked at for every request."""
    heard = Heard(most=3)
    for i in range(9):
        heard.discovery.found(service(announcer(f"http://a:{i + 1}"), f"n{i}"))
    assert len(heard.joined) == 3
    heard.discovery.gone(f"n0.{SERVICE}")
    heard.discovery.found(service(announcer("http://a:9"), "n8"))
    assert heard.joined[-1] == "http://a:9"


def test_strangers_become_upstreams_only_where_the_network_is_trusted() -> None:
    """As for listening: the word is asked for."""
    here, anywhere = ListenAddress("127.0.0.1", 0), ListenAddress("0.0.0.0", 0)
    assert check_discovery(here, (), is_insecure=False)
    assert not check_discovery(anywhere, (TOKEN,), is_insecure=False)
    assert not check_discovery(anywhere, (), is_insecure=True)
    with pytest.raises(NodeError, match="peer-token-file"):
        check_discovery(anywhere, (), is_insecure=False)


@pytest.mark.parametrize("url", ["http://0.0.0.0:8080", "http://[::]:8080", "http://127.0.0.1:1/" + "x" * 9])
def test_a_url_that_nobody_can_call_is_not_announced(url: str) -> None:
    """`--address` names one."""
    with pytest.raises(NodeError), announcing(announcer(url)):
        pass


def test_without_zeroconf_the_extra_is_named() -> None:
    """Only `--announce` and `--discover` need it: a node without them starts."""
    script = "import sys; sys.modules['zeroconf'] = None; import pliant.serve.node.start_node as s; {}"
    ok = subprocess.run(
        [sys.executable, "-c", script.format("")], capture_output=True, text=True, check=False
    )
    assert ok.returncode == 0, ok.stderr
    needing = script.format("import pliant.multicast")
    done = subprocess.run([sys.executable, "-c", needing], capture_output=True, text=True, check=False)
    assert "pip install 'pliant[discover]'" in done.stderr


# With real sockets


@pytest.fixture
def content(multicast: None) -> str:
    """A model and a name that no other test has: all tests of this machine share its loopback."""
    return secrets.token_hex(8)


def above(content: str, name: str = "up", **options: Any) -> AbstractContextManager[Running]:
    served = Upper(mark=f"@{name}", identity=content)
    known = {"name": f"{name}-{content}", "is_announced": True, **fixed(*HONEST)}
    return running(served, **{**known, **options})


def below(content: str, **options: Any) -> AbstractContextManager[Running]:
    served = Upper(mark="@end", identity=content)
    known = {"name": "end", "discovers": True, "operator_tokens": (OPERATOR,), **fixed(*LATE)}
    return running(served, **{**known, **options})


def states(node: Running) -> dict[str, str]:
    return {peer["url"]: peer["state"] for peer in peers(node).json()["upstreams"]}


def test_a_node_that_comes_is_used_and_one_that_goes_leaves(content: str) -> None:
    """Nobody names an address, on either side, before or after."""
    with below(content) as end:
        assert answer_of(end, "x") == "X@end"
        for name in ("first", "second"):
            with above(content, name) as up:
                until(lambda up=up: states(end) == {up.url: "ready"})  # type: ignore[misc]
                assert peers(end).json()["upstreams"][0]["is_found"]
                assert answer_of(end, "x" * 400) == "X" * 400 + f"@{name}"
                url = up.url
            until(lambda: states(end) == {})
            assert answer_of(end, "x" * 400) == "X" * 400 + "@end"
            text = httpx.get(f"{end.url}/metrics", timeout=PATIENCE_S).text
            assert f'upstream="{url}"' not in text


def test_two_nodes_of_one_name_are_two_upstreams(content: str) -> None:
    """Names are for people: announcements get numbers, and upstreams are known by their URLs."""
    with below(content) as end, ExitStack() as stack:
        twins = [stack.enter_context(above(content, "twin")) for _ in range(2)]
        until(lambda: states(end) == {twin.url: "ready" for twin in twins})
        assert answer_of(end, "x" * 400) == "X" * 400 + "@twin"
        twins[0].stop()
        twins[0].join()
        until(lambda: list(states(end)) == [twins[1].url])
        assert answer_of(end, "x" * 400) == "X" * 400 + "@twin"


def test_no_request_is_lost_while_found_nodes_come_and_go(content: str) -> None:
    """Threads ask all the while; each gets one answer, right, from one of those that are there."""
    with below(content) as end, above(content, "steady") as steady, ThreadPoolExecutor(8) as pool:
        until(lambda: states(end).get(steady.url) == "ready")
        is_over = False

        def ask(k: int) -> int:
            n = 0
            while not is_over or n < 10:
                text = f"{k}:{n}:" + "x" * 300
                answer = answer_of(end, text)
                assert answer.partition("@")[0] == text.upper()
                assert answer.partition("@")[2] in {"end", "steady", "n0", "n1", "n2"}
                n += 1
            return n

        asking = [pool.submit(ask, k) for k in range(8)]
        for i in range(3):
            with above(content, f"n{i}") as up:
                until(lambda up=up: states(end).get(up.url) == "ready")  # type: ignore[misc]
                n_before = metric(end, 'pliant_responses_total{path="/v2/models/upper/infer",status="200"}')
                until(
                    lambda n=n_before: (
                        metric(  # type: ignore[misc]
                            end, 'pliant_responses_total{path="/v2/models/upper/infer",status="200"}'
                        )
                        > n + 20
                    )
                )
            until(lambda up=up: up.url not in states(end))  # type: ignore[misc]
        is_over = True
        assert sum(one.result() for one in asking) >= 80


def test_a_stranger_is_not_called_where_nodes_share_a_token(content: str) -> None:
    """He announces himself as the model's node; only who holds the token is taken."""
    tokens = {"tokens": ("client-token-0123",), "peer_tokens": (TOKEN,)}
    with Liar(points="[[0,0.0]]", content=GOOD) as liar, ExitStack() as stack:
        stranger = announcer(liar.url, (OTHER_TOKEN,), identity=Identity(content), name=content)
        stack.enter_context(announcing(stranger))
        end = stack.enter_context(below(content, **tokens))
        up = stack.enter_context(above(content, **tokens))
        until(lambda: states(end) == {up.url: "ready"})
        assert liar.n_calls == 0


def test_announcements_are_proven_by_the_tokens_of_now(content: str, tmp_path: Path) -> None:
    """Nodes that share no token find each other once both have read a new one."""
    given, files = (TOKEN, OTHER_TOKEN), [tmp_path / name for name in ("up", "end")]
    for file, token in zip(files, given, strict=True):
        file.touch(mode=0o600)
        file.write_text(token)
    up_options, end_options = (
        {"tokens": ("client-token-0123",), "peer_tokens": (token,), "token_files": TokenFiles(peers=file)}
        for file, token in zip(files, given, strict=True)
    )
    with above(content, **up_options) as up, below(content, **end_options) as end:
        for file in files:
            file.write_text("a-new-token-of-peers")
        until(lambda: states(end) == {up.url: "ready"})


def test_a_liar_that_is_found_is_checked_as_one_that_was_named(content: str) -> None:
    """Where no tokens are shared he joins, and is set aside by his first wrong answer."""
    with Liar(points="[[0,0.0]]") as liar, below(content) as end, ExitStack() as stack:
        stack.enter_context(announcing(announcer(liar.url, identity=Identity(content), name=content)))
        until(lambda: target_of(end, 1) == liar.url)
        assert answer_of(end, "x") == "X@end"
        until(lambda: states(end) == {liar.url: "aside"})


def test_the_certificate_of_a_node_that_is_found_is_held_against_the_authority(
    content: str, tmp_path: Path
) -> None:
    """As that of one that was named: an announcement replaces no name and no authority."""
    trustme = pytest.importorskip("trustme", reason="trustme, which makes certificates, is not installed")
    authority, stranger = trustme.CA(), trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca")
    nodes = {}
    with below(content, tls=Tls(ca=tmp_path / "ca")) as end, ExitStack() as stack:
        for name, signer, host in (
            ("good", authority, "127.0.0.1"),
            ("stranger", stranger, "127.0.0.1"),
            ("other", authority, "127.0.0.2"),
        ):
            made = signer.issue_cert(host)
            made.cert_chain_pems[0].write_to_path(tmp_path / f"{name}.cert")
            made.private_key_pem.write_to_path(tmp_path / f"{name}.key")
            (tmp_path / f"{name}.key").chmod(0o600)
            tls = Tls(tmp_path / f"{name}.cert", tmp_path / f"{name}.key")
            nodes[name] = stack.enter_context(above(content, name, tls=tls)).url
        expected = {nodes["good"]: "ready", nodes["stranger"]: "down", nodes["other"]: "down"}
        until(lambda: states(end) == expected)
        assert answer_of(end, "x" * 400) == "X" * 400 + "@good"


def test_the_end_of_an_announcement_takes_no_node_away_that_answers(content: str) -> None:
    """Anybody can send one in the name of another."""
    with below(content) as end, ExitStack() as stack:
        up = stack.enter_context(above(content, is_announced=False))
        announcement = stack.enter_context(ExitStack())
        announcement.enter_context(announcing(announcer(up.url, identity=Identity(content), name=content)))
        until(lambda: states(end) == {up.url: "ready"})
        ok = f'pliant_pings_total{{outcome="ok",upstream="{up.url}"}}'
        n_pings = metric(end, ok)
        announcement.close()
        until(lambda: metric(end, ok) > n_pings)
        assert states(end) == {up.url: "ready"}
        assert answer_of(end, "x" * 400) == "X" * 400 + "@up"


def test_what_an_operator_removes_stays_away_until_he_adds_it(content: str) -> None:
    """He overrules announcements."""
    with below(content) as end, ExitStack() as stack:
        up = stack.enter_context(above(content, is_announced=False))

        def announced() -> AbstractContextManager[None]:
            return announcing(announcer(up.url, identity=Identity(content), name=content, run="2"))

        with announced():
            until(lambda: states(end) == {up.url: "ready"})
            assert peers(end, {"remove": [up.url]}).json()["upstreams"] == []
        assert end.node is not None
        assert end.node.upstreams is not None
        end.node.upstreams.discovered.join(up.url)
        assert states(end) == {}
        assert peers(end, {"add": [up.url]}).status_code == 200
        until(lambda: states(end) == {up.url: "ready"})
        assert not peers(end).json()["upstreams"][0]["is_found"]
