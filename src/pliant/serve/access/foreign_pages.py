"""Keep pages of other sites in a browser on this machine from a node that asks for no token."""

from functools import lru_cache
from ipaddress import ip_address
from urllib.parse import urlsplit


def foreign_page(host: str, origin: str | None) -> str | None:
    """Why a call is not answered that a page of another site makes; None for any other.

    Such a page may post to 127.0.0.1, which a browser lets it (cross-site request forgery): its `origin` is
    not the `host` that is called. Or its name is made to mean 127.0.0.1 once it is loaded, so that it reads
    the answers too (DNS rebinding): then `host` is that name. Callers other than browsers send no origin.
    """
    if origin is not None and (not host or origin.partition("://")[2].lower() != host.lower()):
        return f"a page of {origin[:80]} may not call a node that asks for no token: give it --token-file."
    if host and not _is_here(host):
        return (
            f"{host[:80]} is no name of this machine, and this node asks for no token: call it at 127.0.0.1, "
            "give it --token-file, or say --insecure."
        )
    return None


@lru_cache(maxsize=64)
def _is_here(host: str) -> bool:
    """An address, which no page can have, or a name that no network resolves."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        if name == "localhost" or name.endswith(".localhost"):
            return True
        ip_address(name)
    except ValueError:
        return False
    return True
