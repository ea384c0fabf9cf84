"""Requests made from the node's own OpenAPI document, valid and not, of every role: schemathesis."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any
from urllib.parse import unquote, urlsplit

import hypothesis
import pytest

from pliant.serve.access.roles import EVERYBODY, Role, rule_for
from tests.serve.models import Upper
from tests.serve.nodes import running

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")
EXAMPLES, EXAMPLES_OF_ROLE = 25, 6
TOKENS = {role: f"{role}-token-0123456" for role in Role}
FILES = {Role.CLIENT: "tokens", Role.PEER: "peer_tokens", Role.OPERATOR: "operator_tokens"}
MODES = pytest.mark.parametrize("mode", ["POSITIVE", "NEGATIVE"])


@pytest.fixture(scope="module")
def document() -> Iterator[Any]:
    with running(Upper(), name="here") as node:
        yield schemathesis.openapi.from_url(f"{node.url}/openapi.json")


@pytest.fixture(scope="module")
def guarded() -> Iterator[Any]:
    """Of a node with tokens of every role."""
    by_role: dict[str, Any] = {FILES[role]: (token,) for role, token in TOKENS.items()}
    with running(Upper(), name="here", **by_role) as node:
        headers = {"authorization": f"Bearer {TOKENS[Role.CLIENT]}"}
        yield schemathesis.openapi.from_url(f"{node.url}/openapi.json", headers=headers)


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


def check_answer(case: Any, answer: Any, *excluded: Any) -> None:
    """No answer of 5xx but for a deadline; no status, type or form that is not documented."""
    from schemathesis.checks import not_a_server_error

    # A deadline that cannot be kept is refused with 503, as the document says.
    is_late = answer.status_code == 503 and "deadline" in answer.json()["error"]
    case.validate_response(answer, excluded_checks=[*excluded, *([not_a_server_error] if is_late else [])])


@MODES
def test_the_document_describes_the_node(document: Any, mode: str) -> None:
    """[crime.damage] What the document allows is answered; what it does not is refused."""
    assert ask_everything(document, mode, EXAMPLES, lambda case: check_answer(case, case.call())) >= 8


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
