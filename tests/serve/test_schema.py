"""Requests made from the node's own OpenAPI document, valid and not, of every role: schemathesis."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any
from urllib.parse import unquote, urlsplit

import httpx
import hypothesis
import pytest

from pliant.serve.access.roles import EVERYBODY, GRPC, RULES, Role, rule_for
from pliant.serve.page.page_routes import EVENTS_PATH
from tests.serve.models import Counts, Upper
from tests.serve.nodes import PATIENCE_S, Running, running, running_models

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")
EXAMPLES, EXAMPLES_OF_ROLE = 25, 6
TOKENS = {role: f"{role}-token-0123456" for role in Role}
FILES = {Role.CLIENT: "tokens", Role.PEER: "peer_tokens", Role.OPERATOR: "operator_tokens"}
MODES = pytest.mark.parametrize("mode", ["POSITIVE", "NEGATIVE"])


class LongCounts(Counts):
    """Takes any text that is generated here."""

    max_length = 1 << 20


@pytest.fixture(scope="module", params=["text", "vectors", "no model"])
def document(request: pytest.FixtureRequest) -> Iterator[Any]:
    served = {"text": Upper, "vectors": LongCounts}.get(request.param)
    with running_models([], name="here") if served is None else running(served(), name="here") as node:
        yield read(node)


@pytest.fixture(scope="module")
def guarded() -> Iterator[Any]:
    """Of a node with tokens of every role."""
    by_role: dict[str, Any] = {FILES[role]: (token,) for role, token in TOKENS.items()}
    with running(Upper(), name="here", **by_role) as node:
        headers = {"authorization": f"Bearer {TOKENS[Role.CLIENT]}"}
        yield read(node, headers=headers)


def read(node: Running, **options: Any) -> Any:
    """The document without the page's events, which have no end: tests/serve/page reads them."""
    return schemathesis.openapi.from_url(f"{node.url}/openapi.json", **options).exclude(path=EVENTS_PATH)


def ask_everything(document: Any, mode: str, n_examples: int, ask: Callable[[Any], None]) -> int:
    """`ask` with cases of every operation of the document; how many operations there are."""
    from schemathesis import GenerationMode
    from schemathesis.core.result import Ok

    n = 0
    for result in document.get_all_operations():
        assert isinstance(result, Ok), result

        @hypothesis.settings(
            max_examples=n_examples,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        @hypothesis.given(case=result.ok().as_strategy(generation_mode=GenerationMode[mode]))
        def asked(case: Any) -> None:
            ask(case)

        with suppress(hypothesis.errors.Unsatisfiable):  # nothing about a plain GET can be wrong
            asked()
        n += 1
    return n


def with_integers(value: Any) -> Any:
    """JSON Schema takes 802.0 for an integer, which no client sends for one and no node reads as one."""
    match value:
        case dict():
            return {name: with_integers(one) for name, one in value.items()}
        case list():
            return [with_integers(one) for one in value]
        case float() if value.is_integer() and abs(value) < 1 << 53:
            return int(value)
    return value


def check_answer(case: Any, answer: Any, *excluded: Any) -> None:
    """No answer of 5xx but for a deadline; no status, type or form that is not documented."""
    from schemathesis.checks import not_a_server_error

    # A deadline that cannot be kept is refused with 503, as the document says.
    is_late = answer.status_code == 503 and "deadline" in str(answer.json()["error"])
    case.validate_response(answer, excluded_checks=[*excluded, *([not_a_server_error] if is_late else [])])


def test_every_route_is_in_the_document() -> None:
    """docs/protocols.md: it describes the REST API in full."""
    with running(Upper()) as node:
        paths = httpx.get(f"{node.url}/openapi.json", timeout=PATIENCE_S).json()["paths"]
    described = [(method.upper(), path) for path, about in paths.items() for method in about]
    missing = [
        f"{rule.method} {rule.path}"
        for rule in RULES
        if not rule.path.startswith(GRPC)
        and not any(method == rule.method and rule.fits(path) for method, path in described)
    ]
    assert missing == []


@MODES
def test_the_document_describes_the_node(document: Any, mode: str) -> None:
    """[crime.damage] What the document allows is answered; what it does not is refused."""

    def ask(case: Any) -> None:
        if mode == "POSITIVE":
            case.body = with_integers(case.body)
        check_answer(case, case.call())

    assert ask_everything(document, mode, EXAMPLES, ask) >= 8


@MODES
@pytest.mark.parametrize("role", [None, *Role], ids=str)
def test_every_role_is_answered_as_the_table_says(guarded: Any, mode: str, role: Role | None) -> None:
    """Whatever is sent: 401 or 403 exactly where the role may not call, and nothing undocumented."""
    from schemathesis.specs.openapi.checks import ignored_auth, positive_data_acceptance

    authorization = f"Bearer {TOKENS[role]}" if role else "Bearer neither-0123456789"

    def ask(case: Any) -> None:
        answer = case.call(headers={"Authorization": authorization})
        sent = answer.request.headers.get("Authorization")  # what is not valid may be this header
        who = role if sent == authorization else None
        path = unquote(urlsplit(str(answer.request.url)).path)
        if not path.isprintable():  # no path is, to anybody
            assert answer.status_code == 404
            return
        roles = rule_for(case.method, path).roles
        if roles == EVERYBODY or who in roles:
            assert answer.status_code not in (401, 403), answer.text
        else:
            assert answer.status_code == (403 if who else 401), answer.text
        check_answer(case, answer, ignored_auth, positive_data_acceptance)

    assert ask_everything(guarded, mode, EXAMPLES_OF_ROLE, ask) >= 8
