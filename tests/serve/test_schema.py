"""Requests made from the node's own OpenAPI document, valid and not: schemathesis."""

from collections.abc import Iterator
from contextlib import suppress

import hypothesis
import pytest

from tests.serve.models import Upper
from tests.serve.nodes import running

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")
EXAMPLES = 25


@pytest.fixture(scope="module")
def document() -> Iterator[object]:
    with running(Upper(), name="here") as node:
        yield schemathesis.openapi.from_url(f"{node.url}/openapi.json")


@pytest.mark.parametrize("mode", ["POSITIVE", "NEGATIVE"])
def test_the_document_describes_the_node(document: object, mode: str) -> None:
    """[crime.damage] no answer of 5xx but for a deadline; no status, type or form that is not documented.

    What the document allows is answered; what it does not is refused.
    """
    from schemathesis import GenerationMode
    from schemathesis.checks import not_a_server_error
    from schemathesis.core.result import Ok

    n = 0
    for result in document.get_all_operations():  # type: ignore[attr-defined]
        assert isinstance(result, Ok), result
        operation = result.ok()

        @hypothesis.settings(
            max_examples=EXAMPLES,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        @hypothesis.given(case=operation.as_strategy(generation_mode=GenerationMode[mode]))
        def ask(case: object) -> None:
            answer = case.call()  # type: ignore[attr-defined]
            # A deadline that cannot be kept is refused with 503, as the document says.
            is_late = answer.status_code == 503 and "deadline" in answer.json()["error"]
            excluded = [not_a_server_error] if is_late else []
            case.validate_response(answer, excluded_checks=excluded)  # type: ignore[attr-defined]

        with suppress(hypothesis.errors.Unsatisfiable):  # nothing about a plain GET can be wrong
            ask()
        n += 1
    assert n >= 8
