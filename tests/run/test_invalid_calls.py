"""What every kind of session refuses, with a message: several texts, unknown ids, calls once closed."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pliant.ir.device import DeviceProfile
from pliant.profile.profile_cache import save_profile

# In a process of its own: here, the checks of annotations would answer before the sessions do.
SCRIPT = """
import json, sys
from pathlib import Path
import numpy as np
import onnx.parser
import pliant
from pliant.cluster.net.key import new_key
from pliant.errors import PliantError
from pliant.profile.profile_cache import load_profile

model, cache, profile = map(Path, sys.argv[1:])
product = onnx.parser.parse_model(
    '<ir_version: 8, opset_import: ["": 17]> look_up (float[5,2] table, int64[n] ids) => (float[n,2] y) '
    '{ y = Gather <axis = 0> (table, ids) }'
)
said = {}

def refused(name, call):
    try:
        call()
        said[name] = "was answered"
    except Exception as error:
        said[name] = f"{type(error).__name__}: {error}"

opened = dict(
    elastic=pliant.open(
        model, latency="60s", threads=1, profile=load_profile(profile), cache=cache, preload="1MB"
    ),
    recurrent=pliant.open("imdb-lstm", threads=1, cache=cache),
    cluster=pliant.Cluster("127.0.0.1:0", key=new_key(), threads=1, shares="equal", cache=cache),
    graph=pliant.compile(product, threads=1, cache=cache),
)
elastic, recurrent, cluster, graph = opened.values()
split = cluster.open(model)
table = np.zeros((5, 2), np.float32)
ids = {
    "elastic": lambda i: elastic.run({"ids": [[1, i]]}),
    "recurrent": lambda i: recurrent.run({"ids": np.int32([[1, i]])}),
    "cluster": lambda i: split.alone({"ids": np.int32([[1, i]])}),
    "graph": lambda i: graph.run({"table": table, "ids": np.array([1, i])}),
}
for kind, feed in ids.items():
    refused(f"{kind}, ids too large", lambda: feed(30000))
    refused(f"{kind}, ids too small", lambda: feed(-7))
texts = ["a good film", "a bad film"]
refused("cluster, texts", lambda: split(["a good film", 7]))
refused("elastic, text of no kind", lambda: elastic(7))
refused("retarget", lambda: elastic.retarget())
refused("retarget to None", lambda: elastic.retarget(None))
feeds = {"table": table, "ids": np.array([1])}
graph.run(feeds)
for session in opened.values():
    session.close()
    session.close()
calls = {
    "elastic": (
        lambda: elastic("a film"), lambda: elastic(texts), lambda: elastic.run({"ids": [[1]]}),
        lambda: elastic.curve(), lambda: elastic.explain(8), lambda: elastic.retarget(latency="1s"),
        lambda: elastic.warm_up(),
        lambda: elastic.plan_at(8, "1s"), lambda: elastic.forecast(8, "1s"),
        lambda: elastic.engagement("1MB").__enter__(),
    ),
    "recurrent": (
        lambda: recurrent("a film"), lambda: recurrent.run({"ids": np.int32([[1]])}),
        lambda: recurrent.states(np.zeros((1, recurrent.spec.inputs), np.float32)),
        lambda: recurrent.explain(9),
    ),
    "cluster": (
        lambda: split("a film"), lambda: split.plan_at(8), cluster.status, lambda: cluster.wait(1),
        lambda: split.alone({"ids": [[1]]}), lambda: cluster.open(model),
    ),
    "graph": (lambda: graph.run(feeds), lambda: graph.profile(feeds)),
}
for kind, some in calls.items():
    for i, call in enumerate(some):
        refused(f"{kind}, closed, {i}", call)
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("refusals")


@pytest.fixture
def said(
    tiny_model: Callable[..., Path], folder: Path, slow_profile: Callable[..., DeviceProfile]
) -> dict[str, str]:
    """What each call raised, by its name; the calls are made once."""
    kept = folder / "said.json"
    if not kept.is_file():
        profile = save_profile(folder / "profile.json", slow_profile((2, 4)))
        model = tiny_model("bert", widths=(2, 4))
        command = [sys.executable, "-c", SCRIPT, str(model), str(folder / "cache"), str(profile)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        kept.write_text(done.stdout)
    found: dict[str, str] = json.loads(kept.read_text())
    return found


def test_an_id_that_the_model_has_not_is_named_with_its_limit(said: dict[str, str]) -> None:
    """It was taken for the nearest one, and answered: a tokenizer of another model went unnoticed."""
    limits = {"elastic": "0 to 63", "recurrent": "0 to ", "cluster": "0 to 63", "graph": "-5 to 4"}
    for kind, limit in limits.items():
        for size, value in (("large", 30000), ("small", -7)):
            message = said[f"{kind}, ids too {size}"]
            assert message.startswith("InputError: ")
            assert str(value) in message
            assert limit in message


def test_what_is_no_text_is_refused_and_named(said: dict[str, str]) -> None:
    """It was an AttributeError from inside the tokenizer; of several texts, the message says which one."""
    assert said["cluster, texts"] == "InputError: text 1 of the list: the text is of type int; give a str."
    assert said["elastic, text of no kind"] == "InputError: the text is of type int; give a str."


def test_a_retarget_to_nothing_is_refused(said: dict[str, str]) -> None:
    """`retarget(None)` passed, and whoever meant a target kept the old one."""
    for call in ("retarget", "retarget to None"):
        assert said[call].startswith("InputError: there is nothing to change: give latency")


def test_a_closed_session_says_that_it_is_closed(said: dict[str, str]) -> None:
    """It spoke of lanes, sockets or nothing at all, depending on its kind and the call."""
    closed = {call: message for call, message in said.items() if "closed" in call}
    assert len(closed) == 22
    for call, message in closed.items():
        assert message.startswith("InputError: this "), call
        assert "is closed; " in message, call
