"""The static files of the page: read once, served with a strict content security policy."""

import gzip
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response

INDEX = "index.html"
_TYPES: Mapping[str, str] = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
    "txt": "text/plain; charset=utf-8",
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
    "trusted-types 'none'"
)
"""No external content, no inline scripts or styles, no text parsed as markup."""
_HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-cache",
    "vary": "accept-encoding",
}


@dataclass(frozen=True, slots=True)
class PageFile:
    """A file, plain and compressed; `etag` identifies its content."""

    media_type: str
    plain: bytes
    packed: bytes
    etag: str


@cache
def page_files() -> Mapping[str, PageFile]:
    """All files of the page by name."""
    found = {}
    for path in sorted(files(__package__).joinpath("static").iterdir(), key=lambda one: one.name):
        plain, suffix = path.read_bytes(), path.name.rpartition(".")[2]
        tag = f'"{hashlib.sha256(plain).hexdigest()[:16]}"'
        found[path.name] = PageFile(_TYPES[suffix], plain, gzip.compress(plain, mtime=0), tag)
    return found


def answer_file(request: Request, name: str) -> Response | None:
    """The response for a file, compressed if the client accepts it; None if there is no such file."""
    file = page_files().get(name)
    if file is None:
        return None
    if request.headers.get("if-none-match") == file.etag:
        return Response(status_code=304, headers={**_HEADERS, "etag": file.etag})
    is_packed = "gzip" in request.headers.get("accept-encoding", "")
    headers = {**_HEADERS, "etag": file.etag, "content-type": file.media_type}
    if is_packed:
        headers["content-encoding"] = "gzip"
    return Response(file.packed if is_packed else file.plain, headers=headers)
