"""Where nodes below are called back: nobody can make a node call an address of his choice."""

import pytest

from pliant.errors import NodeError
from pliant.serve.upstream.callback import parse_callbacks

CALLER = "192.168.1.7"


@pytest.mark.parametrize(
    ("address", "called"),
    [
        ("http://192.168.1.7:8080", "http://192.168.1.7:8080"),
        ("https://192.168.1.7:8443", "https://192.168.1.7:8443"),
        ("http://0.0.0.0:8080", "http://192.168.1.7:8080"),
        ("http://[::]:8080", "http://192.168.1.7:8080"),
        ("http://[::ffff:192.168.1.7]:8080", "http://[::ffff:192.168.1.7]:8080"),
        ("http://169.254.169.254", "http://192.168.1.7"),
        ("http://[::ffff:169.254.169.254]:80", "http://192.168.1.7:80"),
        ("http://2852039166:80", "http://192.168.1.7:80"),
        ("http://metadata.google.internal", "http://192.168.1.7"),
        ("http://localhost:6379", "http://192.168.1.7:6379"),
        ("http://127.0.0.1:6379", "http://192.168.1.7:6379"),
        ("http://10.1.2.3:8080", "http://192.168.1.7:8080"),
    ],
)
def test_a_node_is_called_back_where_it_calls_from(address: str, called: str) -> None:
    """What it says of itself chooses the port only: a metadata service or a database is out of reach."""
    assert parse_callbacks(()).url(address, CALLER) == called


@pytest.mark.parametrize("address", ["http://10.1.2.3:8080", "http://Gateway.example:8080"])
def test_configured_networks_and_hosts_are_called_as_they_are_said(address: str) -> None:
    """Nodes behind address translation, and those whose certificates hold names."""
    allowed = parse_callbacks(["10.0.0.0/8", "gateway.example"])
    assert allowed.url(address, CALLER) == address
    assert allowed.url("http://11.1.2.3:1", CALLER) == f"http://{CALLER}:1"


@pytest.mark.parametrize(
    "address",
    ["http://169.254.169.254", "http://[fe80::1]:80", "http://[fd00:ec2::254]", "http://100.100.100.200"],
)
def test_no_network_makes_a_metadata_service_be_called(address: str) -> None:
    """A wide network is quickly written, and the credentials of a machine lie behind these addresses."""
    assert parse_callbacks(["0.0.0.0/0", "::/0"]).url(address, CALLER) is None


@pytest.mark.parametrize("caller", ["169.254.0.9", "fe80::1%eth0", "testclient"])
def test_a_caller_that_cannot_be_called_is_told_nothing(caller: str) -> None:
    """It still asks, and hears of changes with its next ping."""
    assert parse_callbacks(()).url("http://10.0.0.1:80", caller) is None


def test_a_caller_over_ipv6_is_called_in_brackets() -> None:
    """As a URL has it."""
    assert parse_callbacks(()).url("http://[::]:80", "2001:db8::1") == "http://[2001:db8::1]:80"


@pytest.mark.parametrize("text", ["", "10.0.0.0/40", "10.0.0.1/8", "http://host", "300.1.1.1"])
def test_what_is_no_network_is_refused(text: str) -> None:
    """At the start, not when the first node registers."""
    with pytest.raises(NodeError, match="not a network"):
        parse_callbacks([text])


def test_an_address_that_is_no_nodes_is_refused() -> None:
    """It is the other node's mistake, and it is told."""
    with pytest.raises(NodeError, match="not a node's address"):
        parse_callbacks(()).url("file:///etc/passwd", CALLER)
