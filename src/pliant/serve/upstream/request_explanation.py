"""Request a node's routing explanation as a client."""

import logging
import ssl

import httpx
import msgspec

from pliant.errors import NodeError
from pliant.route.choice.request_terms import NO_TERMS, Terms
from pliant.serve.access.security import bearer, is_unencrypted, unencrypted_warning
from pliant.serve.answers.explain_choice import Explanation
from pliant.serve.upstream.client import checked_url

_LOG = logging.getLogger("pliant.serve")
EXPLAIN_PATH = "/v2/pliant/route"
EXPLAINED = ("length", "deadline_s", "accuracy_floor", "objective", "model", "version")
"""Query parameters, each at most once; the length is required."""
_PATIENCE_S = 10.0


def request_explanation(
    url: str,
    length: int,
    token: str | None,
    tls: ssl.SSLContext,
    terms: Terms = NO_TERMS,
    model: str | None = None,
    version: str | None = None,
    objective: str | None = None,
) -> Explanation:
    """Explain what the node at `url` would do with an input of `length` now. Raises NodeError.

    `model` is one of the node's models, by default of its newest `version`; None for the first.
    `objective` is that of a request; None for the node's.
    """
    if token is not None and is_unencrypted(checked_url(url)):
        _LOG.warning(unencrypted_warning(url))
    values = (length, terms.deadline_s, terms.accuracy_floor, objective, model, version)
    asked = zip(EXPLAINED, values, strict=True)
    try:
        response = httpx.get(
            f"{checked_url(url)}{EXPLAIN_PATH}",
            params={name: value for name, value in asked if value is not None},
            headers=bearer(token),
            timeout=_PATIENCE_S,
            verify=tls,
            trust_env=False,
        )
    except httpx.HTTPError as error:
        raise NodeError(f"no node answers at {url}: {error}. Start one with `pliant node`.") from error
    if response.status_code != 200:
        hint = " Give an operator's token with --token-file." if response.status_code == 401 else ""
        raise NodeError(f"{url} answers with status {response.status_code}: {response.text[:200]}{hint}")
    try:
        return msgspec.json.decode(response.content, type=Explanation)
    except msgspec.DecodeError as error:
        raise NodeError(f"{url} is not a pliant node, or has another version: {error}.") from error
