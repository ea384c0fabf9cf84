"""Refuse calls by web pages of other sites to a node on this machine that needs no token."""

from functools import lru_cache
from ipaddress import ip_address
from urllib.parse import urlsplit


def foreign_page(host: str, origin: str | None) -> str | None:
    """The reason to refuse a call by a web page of another site; None for any other call.

    Browsers let such a page post to 127.0.0.1 (cross-site request forgery): its `origin` differs from the
    `host` that is called. Or its host name is changed to resolve to 127.0.0.1 after the page is loaded, so
    that it can also read responses (DNS rebinding): `host` is then that name. Other callers than browsers
    send no origin.
    """
    if origin is not None and (not host or origin.partition("://")[2].lower() != host.lower()):
        return f"a page of {origin[:80]} may not call a node that needs no token: give it --token-file."
    if host and not _is_here(host):
        return (
            f"{host[:80]} is not a name of this machine, and this node needs no token: call it at 127.0.0.1, "
            "or start it with --token-file or --insecure."
        )
    return None


@lru_cache(maxsize=64)
def _is_here(host: str) -> bool:
    """Whether the host is an IP address, which no rebinding page has, or a name that no network resolves."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        if name == "localhost" or name.endswith(".localhost"):
            return True
        ip_address(name)
    except ValueError:
        return False
    return True
