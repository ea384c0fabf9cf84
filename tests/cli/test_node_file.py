"""`node.toml`: its options, and every mistake with its line."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import Result

from pliant.api.open_encoder import open_encoder
from pliant.api.open_endpoint import open_endpoint
from pliant.cli.node import NodeArguments
from pliant.cli.shared.node_models import (
    model_entries,
    read_options,
    shares_memory,
)
from pliant.cluster.net.key import new_key
from pliant.errors import InputError, NodeError
from pliant.plan.split.activation_bytes import whole_memory_bytes
from pliant.run.process_memory import MemoryBudget
from pliant.serve.access.security import read_tokens
from tests.cluster.test_clustered import write_key
from tests.serve.nodes import PATIENCE_S, asking, running_models
from tests.serve.repository.test_models_under_load import sums
from tests.serve.repository.test_repository_api import OPERATOR
from tests.tiny import tiny_spec, write_model

WHOLE = """
listen = "127.0.0.1:0"
queue = 8
peer-network = ["10.0.0.0/8"]
tls-cert = "cert.pem"

[[model]]
source = "sst2"
latency = "20ms"
upstream = ["http://gateway:8080"]

[[model]]
name = "search"
version = "2"
source = "imdb-lstm"
memory = "20MB"
load = false
"""


def written(folder: Path, text: str) -> NodeArguments:
    (folder / "node.toml").write_text(text)
    return NodeArguments(config=folder / "node.toml")


def test_a_file_holds_options_of_the_node_and_of_each_model(tmp_path: Path) -> None:
    """What the command line says precedes it."""
    args, tables = read_options(written(tmp_path, WHOLE))
    assert (args.queue, args.peer_network, args.tls_cert) == (8, ["10.0.0.0/8"], Path("cert.pem"))
    assert [table["source"] for table in tables] == ["sst2", "imdb-lstm"]
    (first,) = model_entries(args, tables[:1])
    assert first.endpoints.upstreams == ("http://gateway:8080",)
    assert first.endpoints.terms.deadline_s == 0.02
    args, _ = read_options(replace(written(tmp_path, WHOLE), queue=9))
    assert args.queue == 9


def test_an_option_of_the_command_line_that_is_the_default_precedes_the_file(
    tmp_path: Path, cli: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--listen 127.0.0.1:8080` must not listen on all addresses because the file says so."""
    seen = []

    def read(given: NodeArguments) -> None:
        seen.append(read_options(given)[0])
        raise InputError("read.")

    monkeypatch.setattr("pliant.cli.shared.node_models.read_options", read)
    given = written(tmp_path, WHOLE.replace("127.0.0.1:0", "0.0.0.0:8080"))
    for words in (["--listen", "127.0.0.1:8080"], []):
        assert "read." in cli("node", "--config", given.config, *words).output
    assert [args.listen for args in seen] == ["127.0.0.1:8080", "0.0.0.0:8080"]
    assert [args.queue for args in seen] == [8, 8]


@pytest.mark.parametrize(
    "option", ["preload", "depths", "key", "weights", "compute", "tolerance", "cluster", "workers"]
)
@pytest.mark.parametrize("source", ["[[model]]", "models"])
def test_an_option_that_no_model_would_take_is_refused(tmp_path: Path, option: str, source: str) -> None:
    """An operator must not believe that weights are limited, or that a cluster is led."""
    values = {"key": Path("key"), "weights": "8", "workers": 0, "compute": "int8", "tolerance": 0.5}
    models = "models = '.'" if source == "models" else '[[model]]\nsource = "sst2"\n'
    args, tables = read_options(written(tmp_path, f"announce = true\n{models}"))
    assert len(model_entries(args, tables)) == len(tables)
    args = replace(args, **{option: values.get(option, "1MB")})
    with pytest.raises(InputError, match=f"models of a file or folder cannot share the option --{option} "):
        model_entries(args, tables)
    (only,) = model_entries(NodeArguments(model=["sst2"], preload="1MB"), ())
    assert only.settings.preload == "1MB"  # type: ignore[attr-defined]


def test_each_model_of_a_file_has_its_arithmetic(tmp_path: Path) -> None:
    """A session has it; served models were always in float32."""
    first = '[[model]]\nsource = "sst2"\ncompute = "auto"\ntolerance = 0.02\n'
    second = f'[[model]]\nsource = "{sums(tmp_path)}"\ncompute = "bf16"\n'
    found: list[Any] = [
        entry.settings for entry in model_entries(*read_options(written(tmp_path, first + second)))
    ]
    assert [(one.compute, one.tolerance) for one in found] == [("auto", 0.02), ("bf16", 0.01)]


@pytest.mark.parametrize("is_folder", [True, False])
def test_one_model_leaves_memory_for_those_that_come_later(tmp_path: Path, is_folder: bool) -> None:
    """From the folder, or after SIGHUP: a reservation of all of `--memory` had every load refused."""
    source = str(sums(tmp_path))
    args = (
        replace(written(tmp_path, ""), config=None, models=tmp_path) if is_folder else written(tmp_path, "")
    )
    args, tables = read_options(replace(args, model=[source], memory="40MB", threads=1))
    assert shares_memory(args)
    (entry,) = model_entries(args, tables)
    memory = MemoryBudget(40_000_000)
    (led,) = model_entries(replace(args, cluster="127.0.0.1:0"), tables)
    assert led.settings.memory is None  # type: ignore[attr-defined]
    opened = entry.open(memory)
    assert 30_000_000 < memory.free_bytes < 40_000_000
    opened.local.close()
    opened.close()


def test_a_model_with_a_cluster_shares_the_memory_of_all_models(tmp_path: Path) -> None:
    """Its cluster's weights on this device were bounded by free memory alone, beside `memory`."""
    source, other = str(write_model(tmp_path / "bert", tiny_spec())), "imdb-lstm"
    key = write_key(tmp_path / "key", new_key())
    text = (
        f'[[model]]\nname = "split"\nsource = "{source}"\nthreads = 1\ncluster = "127.0.0.1:0"\n'
        f'workers = 0\nkey = "{key}"\n[[model]]\nname = "other"\nsource = "{other}"\nthreads = 1\n'
    )
    want = {}
    for name, one in (("split", source), ("other", other)):
        with open_endpoint(one, threads=1) as alone:
            want[name] = alone("a fine film").label
    args, tables = read_options(written(tmp_path, f'memory = "40MB"\n{text}'))
    spec, budget = open_encoder(source, tmp_path).spec, MemoryBudget(40_000_000)
    needed = whole_memory_bytes(spec, spec.max_rows)
    with running_models(model_entries(args, tables), budget) as node:
        for name, label in want.items():
            path = f"{node.url}/v2/models/{name}/infer"
            answer = httpx.post(path, content=asking("a fine film"), timeout=PATIENCE_S)
            assert answer.status_code == 200, answer.text
            assert [o["data"] for o in answer.json()["outputs"] if o["name"] == "label"] == [[label]]
        assert node.node is not None
        _, shared = node.node.sessions
        assert shared("a fine film").label == want["split"]
        assert shared.memory.budget_bytes == needed >= shared.weight_bytes - _ends(shared) > 0
        *_, of_cluster = budget.shares
        assert (of_cluster.name, of_cluster.share_bytes) == (f"{node.node.model.name} (cluster)", needed)
        taken = sum(share.share_bytes for share in budget.shares)
        assert budget.total_bytes - budget.free_bytes == taken <= budget.total_bytes
    assert budget.free_bytes == budget.total_bytes


def _ends(session: Any) -> int:
    (part,) = (part for part in session.memory.parts if part.name == "input and head")
    return part.predicted_bytes


@pytest.mark.parametrize(
    ("old", "new", "line", "why"),
    [
        ("queue = 8", "queu = 8", 3, "'queu' is unknown; the nearest known key is 'queue'"),
        ("queue = 8", 'queue = "8"', 3, "give a whole number"),
        ("queue = 8", "queue = true", 3, "give a whole number"),
        ('upstream = ["http', 'upstream = "http', 10, "list"),
        ('source = "sst2"', 'sauce = "sst2"', 8, "'sauce' is unknown; the nearest known key is 'source'"),
        ('source = "sst2"', "", 7, "has no source"),
        ("load = false", "load = 0", 17, "give true or false"),
        ("load = false", 'compute = "fp16"', 17, 'give "fp32" or "bf16" or "int8" or "auto"'),
        ("queue = 8", 'token-file = { file = "x" }', 3, '{ env = "NAME" } or { credential = "NAME" }'),
        ("queue = 8", 'tls-key = { env = "KEY" }', 3, 'give a path, or { credential = "NAME" }'),
        ("queue = 8", "token-file = { env = 3 }", 3, "give a path"),
        ("queue = 8", "queue = -1", 3, "queue is -1; give 0 or more"),
        ("queue = 8", "workers = -1", 3, "workers is -1; give 0 or more"),
        ("queue = 8", "threads = 0", 3, "threads is 0; give 1 or more"),
        ("queue = 8", "threads = 1_000_000", 3, "too many"),
        ("queue = 8", "accuracy-floor = 1.5", 3, "accuracy-floor is 1.5; give 0 to 1"),
        ("queue = 8", "accuracy-floor = nan", 3, "accuracy-floor is nan; give 0 to 1"),
        ("queue = 8", "dilate = inf", 3, "dilate: "),
        ("queue = 8", 'latency = "20"', 3, "latency: '20' has no unit"),
        ("queue = 8", 'settle = "soon"', 3, "settle: cannot read 'soon'"),
        ("queue = 8", 'memory = "much"', 3, "memory: cannot read 'much'"),
        ("queue = 8", 'client-rate = "fast"', 3, "client-rate: "),
        ("queue = 8", 'client-bandwidth = "fast"', 3, "client-bandwidth: "),
        ("queue = 8", 'objective = "money"', 3, "objective: 'money' is not an objective"),
        ("queue = 8", 'power = "much"', 3, "power: "),
        ("queue = 8", 'radio = "umts"', 3, "radio: 'umts' is not a known radio"),
        ("queue = 8", 'address = "gateway:8080"', 3, "give http://HOST:PORT"),
        ("queue = 8", 'name = "no name"', 3, "name: "),
        ("queue = 8", "client-rate = 2", 3, "for 50 requests a second"),
        ("queue = 8", 'token-file = { env = "NO_SUCH_VARIABLE" }', 3, "NO_SUCH_VARIABLE is not set"),
        ("queue = 8", 'operator-token-file = "missing"', 3, "operator-token-file: "),
        ("queue = 8", 'objective = "energy"', 3, "objective counts joules"),
        ("queue = 8", 'objective = "mix:0.5"', 3, 'add power, such as power = "4.5"'),
        ("queue = 8", 'preload = "3MB"', 3, "preload is an option of one model: write it into its [[model]]"),
        ('"127.0.0.1:0"', '"nowhere"', 2, "listen: 'nowhere' is not an address"),
        ('"10.0.0.0/8"', '"10.0.0.0/40"', 4, "peer-network: "),
        ('"20ms"', '"soon"', 9, "latency: cannot read 'soon'"),
        ("http://gateway", "gateway", 10, "upstream: "),
        ('"search"', '"no name"', 13, "name: 'no name' is not a model name"),
        ("20MB", "much", 16, "memory: cannot read 'much'"),
        ("load = false", "workers = -1", 17, "workers is -1; give 0 or more"),
        ("load = false", 'cluster = "nowhere"', 17, "cluster: 'nowhere' is not an address"),
        ("load = false", 'preload = "1MB"', 15, "no option --preload 1MB"),
        ('"imdb-lstm"', '"no/such.onnx"', 15, "there is no file 'no/such.onnx'"),
        ('version = "2"', 'version = "no version"', 14, "is not a model version"),
    ],
)
def test_each_mistake_is_named_with_its_line(tmp_path: Path, old: str, new: str, line: int, why: str) -> None:
    """All of them at once."""
    text = WHOLE.replace(old, new)
    if '"http' in new:
        text = text.replace(':8080"]', ':8080"')
    with pytest.raises(InputError) as error:
        read_options(written(tmp_path, text))
    assert f"node.toml:{line}: " in str(error.value)
    assert why in str(error.value)


def test_mistakes_of_the_node_and_of_models_are_named_together(tmp_path: Path) -> None:
    """A file that is corrected one start after the other keeps the node down for long."""
    text = (
        WHOLE.replace("queue = 8", "queue = -1")
        .replace('"20ms"', '"soon"')
        .replace('"sst2"', '"no/such.onnx"')
    )
    twice = '\n[[model]]\nname = "search"\nversion = "2"\nsource = "sst2"\n'
    again = '\n[[model]]\nsource = "imdb-lstm"\n' * 2
    with pytest.raises(InputError) as error:
        read_options(written(tmp_path, text + twice + again))
    lines = str(error.value).splitlines()
    assert [line.partition(": ")[0] for line in lines] == [
        f"{tmp_path}/node.toml:{number}" for number in (3, 8, 9, 20, 27)
    ]
    assert "two models are called search version 2" in lines[3]
    assert "two models are called imdb-lstm" in lines[4]


def test_an_option_of_one_model_is_refused_beside_a_single_one_too(tmp_path: Path) -> None:
    """The refusal spoke of `--preload` and gave no line; the power may come from the command line."""
    text = 'preload = "3MB"\nobjective = "energy"\n[[model]]\nsource = "sst2"\n'
    given = replace(written(tmp_path, text), power="2")
    with pytest.raises(InputError) as error:
        read_options(given)
    assert str(error.value) == (
        f"{tmp_path}/node.toml:1: preload is an option of one model: write it into its [[model]]."
    )


def test_the_power_of_an_objective_stands_above_the_models(tmp_path: Path) -> None:
    """The message did not say where: in the [[model]], where it stood, it does not hold for the node."""
    text = 'objective = "energy"\n[[model]]\nsource = "sst2"\npower = "4.5"\n'
    with pytest.raises(InputError, match=r'power = "4\.5", above the first \[\[model\]\]\.'):
        read_options(written(tmp_path, text))


def test_a_file_that_is_no_toml_or_names_no_model_says_so(tmp_path: Path) -> None:
    """TOML's own message has the line."""
    with pytest.raises(InputError, match="line 2"):
        read_options(written(tmp_path, "queue = 8\nlisten = \n[a]"))
    with pytest.raises(InputError, match="names no model"):
        read_options(written(tmp_path, "queue = 8"))


def test_secrets_are_read_from_variables_and_credentials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the file, and of the command line, which says `env:NAME` and `credential:NAME`."""
    folder = tmp_path / "credentials"
    folder.mkdir()
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(folder))
    monkeypatch.setenv("MY_TOKENS", f"{OPERATOR}\n# an old one\n{OPERATOR}2\n")
    (folder / "peers").write_text("peer" * 8)
    (folder / "peers").chmod(0o440)  # as systemd has it: root's, and its reader's by an ACL
    said = 'operator-token-file = { env = "MY_TOKENS" }\npeer-token-file = { credential = "peers" }\n'
    args, _ = read_options(written(tmp_path, said + WHOLE))
    named = replace(written(tmp_path, WHOLE), operator_token_file=Path("env:MY_TOKENS"))
    named, _ = read_options(replace(named, peer_token_file=Path("credential:peers")))
    for given in (args, named):
        assert given.operator_token_file is not None
        assert given.peer_token_file == folder / "peers"
        assert read_tokens(given.operator_token_file) == (OPERATOR, f"{OPERATOR}2")
        assert read_tokens(given.peer_token_file) == ("peer" * 8,)
    monkeypatch.delenv("MY_TOKENS")
    with pytest.raises(NodeError, match="variable MY_TOKENS is not set"):
        read_tokens(Path("env:MY_TOKENS"))
    for name in ("../peers", "", "."):
        with pytest.raises(NodeError, match="LoadCredential"):
            read_options(replace(written(tmp_path, WHOLE), token_file=Path(f"credential:{name}")))
    monkeypatch.delenv("CREDENTIALS_DIRECTORY")
    with pytest.raises(InputError, match=r"node\.toml:2: peer-token-file: there is no credential 'peers'"):
        read_options(written(tmp_path, said + WHOLE))


def test_a_file_with_no_compute_workers_is_refused(tmp_path: Path, cli: Callable[..., Result]) -> None:
    """It became the default without a word; on the command line it is an error."""
    broken = tmp_path / "broken.onnx"  # so that a node that takes the option ends as well
    broken.write_bytes(b"no model")
    text = f'listen = "127.0.0.1:0"\ncompute-workers = 0\n[[model]]\nsource = "{broken}"\n'
    given = written(tmp_path, text)
    result = cli("node", "--config", given.config)
    assert result.exit_code != 0
    assert "node.toml:2: compute-workers is 0; give 1 or more" in result.output
