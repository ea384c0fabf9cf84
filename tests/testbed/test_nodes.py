"""Three nodes in a row, real processes in namespaces: what is asked is answered once, whoever dies."""

import time
from collections import Counter
from collections.abc import Iterator
from typing import Any, final

import httpx
import pytest

from pliant.api.open_session import open as open_session
from pliant.run.array_sessions.recurrent_session import RecurrentSession
from testbed import DeviceSpec, why_not
from testbed.inside import inside
from testbed.nodes import NodeBed, open_nodes

pytestmark = pytest.mark.slow

_MODEL = "imdb-lstm"
_NAMES = ("end", "gateway", "cloud")
_TEXT = "the film was slow and far too long , and yet its ending moved everybody in the room . " * 32
_PATIENCE_S = 60.0


@final
class Asked:
    """A client on the end node's device, and what the model says when it is asked here."""

    def __init__(self, bed: NodeBed, model: RecurrentSession, name: str) -> None:
        self.bed, self.ids, self._name = bed, list[str](), name
        self._model = model
        self._client = httpx.Client(
            trust_env=False, timeout=_PATIENCE_S, headers={"authorization": f"Bearer {bed.token}"}
        )

    def check(self) -> str:
        """One more request is answered rightly; its id."""
        id = f"{self._name}-{len(self.ids)}"
        self.ids.append(id)
        text = f"{id} {_TEXT}"
        tensor = {"name": "text", "shape": [1], "datatype": "BYTES", "data": [text]}
        with inside(self.bed.network["end"]):
            response = self._client.post(
                f"{self.bed.url('end')}/v2/models/{_MODEL}/infer",
                json={"inputs": [tensor]},
                headers={"pliant-request": id},
            )
        assert response.status_code == 200, response.text
        outputs: dict[str, Any] = {o["name"]: o["data"] for o in response.json()["outputs"]}
        right = self._model(text)
        assert outputs["label"] == [right.label]
        assert outputs["logits"] == pytest.approx(right.logits.tolist(), abs=1e-5)
        return id

    def until_answered_by(self, name: str) -> None:
        """Requests, each answered rightly, until `name` is the one that answers."""
        deadline_s = time.monotonic() + _PATIENCE_S
        while time.monotonic() < deadline_s:
            id = self.check()
            if id in self.executed_by(name):
                return
            time.sleep(0.1)
        raise AssertionError(f"{name} never answers")

    def executed_by(self, name: str) -> set[str]:
        """Ids of what a node answered itself."""
        return {executed.id for executed in self.bed.executed(name)}

    def close(self) -> None:
        self._client.close()


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeBed]:
    """An end node below a gateway below a cloud, so unequal that each would rather ask the next."""
    reason = why_not()
    if reason is not None:
        pytest.skip(f"no testbed: {reason}")
    specs = [DeviceSpec(name, slower=slower) for name, slower in zip(_NAMES, (60.0, 30.0, 1.0), strict=True)]
    with open_nodes(
        specs, {"end": ["gateway"], "gateway": ["cloud"]}, _MODEL, tmp_path_factory.mktemp("bed")
    ) as bed:
        yield bed


@pytest.fixture
def asked(bed: NodeBed, request: pytest.FixtureRequest) -> Iterator[Asked]:
    """No node executes a request of the test twice; a second one does only where the first was given up."""
    model = open_session(_MODEL, threads=1)
    asked = Asked(bed, model, request.node.name[-40:])
    before = {name: len(bed.executed(name)) for name in _NAMES}
    try:
        asked.until_answered_by("cloud")
        yield asked
        for name in _NAMES:
            counts = Counter(executed.id for executed in bed.executed(name)[before[name] :])
            assert {id for id, count in counts.items() if count > 1} == set()
    finally:
        asked.close()
        model.close()


@pytest.mark.parametrize("name", ["cloud", "gateway"])
def test_a_killed_node_costs_no_answer_and_is_used_again(name: str, bed: NodeBed, asked: Asked) -> None:
    """[crime.faults] the next best answers meanwhile, the end node by itself at last; nobody restarts it."""
    bed.network[name].kill()
    for _ in range(5):
        asked.check()
    bed.start(name)
    asked.until_answered_by("cloud")


def test_with_all_links_down_the_end_node_answers_by_itself(bed: NodeBed, asked: Asked) -> None:
    """[crime.faults] what was on its way when the cable was pulled is not executed a second time later."""
    bed.network.cut("end")
    alone = {asked.check() for _ in range(5)}
    bed.network.restore("end")
    asked.until_answered_by("cloud")
    assert alone <= asked.executed_by("end")
    assert not alone & (asked.executed_by("gateway") | asked.executed_by("cloud"))


def test_what_the_cloud_was_asked_out_of_reach_it_never_executes(bed: NodeBed, asked: Asked) -> None:
    """[crime.faults] the gateway gives up, and what it gave up is not delivered later."""
    bed.network.cut("cloud")
    below = {asked.check() for _ in range(3)}
    bed.network.restore("cloud")
    asked.until_answered_by("cloud")
    assert not below & asked.executed_by("cloud")
