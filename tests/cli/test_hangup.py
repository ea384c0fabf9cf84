"""What SIGHUP changes of a node that runs, by its `node.toml`."""

import asyncio
import ssl
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from pliant.cli.node import NodeArguments
from pliant.cli.shared.node_models import (
    model_entries,
    read_options,
    terms_of,
    tls_of,
    token_files_of,
)
from pliant.cli.shared.reload_node import reload_node
from pliant.route.choice.objective import ENERGY
from pliant.route.choice.request_terms import Terms
from pliant.run.process_memory import MemoryBudget
from pliant.serve.repository.model_entry import ModelEntry
from tests.cli.test_node_file import written
from tests.serve.access.certificates import Authority
from tests.serve.access.test_credentials import NEW, OLD
from tests.serve.access.test_credentials import written as token_file
from tests.serve.nodes import PATIENCE_S, Running, running_models
from tests.serve.repository.test_models_under_load import sums
from tests.serve.repository.test_repository_api import OPERATOR, index


def test_a_hangup_changes_the_queue_and_rates(tmp_path: Path) -> None:
    """Those that ask too often are told so from then on, and no longer once the rate is gone."""
    text = f'[[model]]\nname = "first"\nsource = "{sums(tmp_path)}"\nthreads = 1\n'
    given = written(tmp_path, text)
    args, tables = read_options(given)
    with running_models(model_entries(args, tables), operator_tokens=(OPERATOR,)) as node:
        assert node.controls is not None
        assert node.node is not None
        assert node.node.upstreams is not None

        def statuses() -> list[int]:
            get = f"{node.url}/v2/models/first"
            return [httpx.get(get, timeout=PATIENCE_S).status_code for _ in range(4)]

        assert statuses() == [200] * 4
        written(tmp_path, f'client-rate = "0.001:2"\nqueue = 3\n{text}')
        _on_loop(node, given, args)
        assert statuses() == [200, 200, 429, 429]
        assert (node.controls.admission.queue, node.node.upstreams.slots.most) == (3, 3)
        written(tmp_path, text)
        _on_loop(node, given, args)
        assert statuses() == [200] * 4
        assert node.controls.admission.queue == args.queue


def test_a_hangup_changes_the_defaults_of_requests(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The model stays loaded, with its own defaults; a floor that it never reaches changes nothing."""
    model = f'[[model]]\nname = "NAME"\nsource = "{sums(tmp_path)}"\nthreads = 1\n'
    text = model.replace("NAME", "first") + model.replace("NAME", "own") + 'latency = "3s"\n'
    given = written(tmp_path, f'power = "2"\nlatency = "1s"\n{text}')
    args, tables = read_options(given)
    with running_models(model_entries(args, tables), terms=terms_of(args)) as node:
        assert node.repository is not None
        first, own = node.repository.nodes
        assert (first.terms, own.terms) == (Terms(1.0), Terms(3.0))
        written(tmp_path, f'power = "2"\nlatency = "2s"\nbest-effort = true\nobjective = "energy"\n{text}')
        _on_loop(node, given, args)
        assert [*node.repository.nodes] == [first, own]
        assert (first.terms, own.terms) == (Terms(2.0, None, True), Terms(3.0, None, True))
        assert first.objective == own.objective == ENERGY
        later = text + model.replace("NAME", "later")
        broken = tmp_path / "broken.onnx"
        broken.write_bytes(b"no model")
        for refused, why in (
            (f'power = "2"\naccuracy-floor = 0.5\n{later}', "no request could have an accuracy floor of 0.5"),
            (f'power = "2"\nlatency = "4s"\n{text}[[model]]\nsource = "{broken}"\n', "broken.onnx"),
            (f'power = "2"\nlatency = "soon"\n{text}', "node.toml:2: latency: cannot read 'soon'"),
        ):
            caplog.clear()
            written(tmp_path, refused)
            _on_loop(node, given, args)
            assert why in caplog.text
            assert [*node.repository.nodes] == [first, own]
            assert first.terms == Terms(2.0, None, True)
        written(tmp_path, f'power = "2"\nlatency = "5s"\n{later}')
        _on_loop(node, given, args)
        assert [one.terms for one in node.repository.nodes] == [Terms(5.0), Terms(3.0), Terms(5.0)]


def test_a_hangup_changes_the_models_or_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A file with a mistake, a model that is broken, and a change of what is fixed keep the old state."""
    path = sums(tmp_path)
    model = f'[[model]]\nname = "NAME"\nsource = "{path}"\nthreads = 1\n'
    given = written(tmp_path, model.replace("NAME", "first"))
    args, tables = read_options(given)
    with running_models(model_entries(args, tables), operator_tokens=(OPERATOR,)) as node:

        def hangup(text: str) -> dict[str, str]:
            written(tmp_path, text)
            _on_loop(node, given, args)
            return index(node)

        first = {"first:1": "READY"}
        assert index(node) == first
        broken = tmp_path / "broken.onnx"
        broken.write_bytes(b"no model")
        both = model.replace("NAME", "first") + model.replace("NAME", "second")
        for text, why in (
            ("[[model", "is not valid TOML"),
            (both.replace(f'second"\nsource = "{path}', f'second"\nsource = "{broken}'), "broken"),
            (
                f'listen = "127.0.0.1:1"\n{both}',
                "listen (line 1, 127.0.0.1:8080 to 127.0.0.1:1) cannot",
            ),
            (f"queue = -1\n{both}", "queue is -1"),
            (f'client-rate = "fast"\n{both}', "is not a rate"),
        ):
            caplog.clear()
            assert hangup(text) == first
            assert why in caplog.text
        assert hangup(both) == {"first:1": "READY", "second:1": "READY"}
        assert hangup(model.replace("NAME", "second")) == {"second:1": "READY"}
        gone = httpx.get(f"{node.url}/v2/models/first", timeout=PATIENCE_S)
        assert gone.status_code == 404


def test_a_hangup_finds_its_models_beside_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model from the hub is downloaded: no request would be answered meanwhile."""
    given = written(tmp_path, f'[[model]]\nname = "first"\nsource = "{sums(tmp_path)}"\nthreads = 1\n')
    args, tables = read_options(given)
    with running_models(model_entries(args, tables), operator_tokens=(OPERATOR,)) as node:
        seen: list[object] = []

        def find(*given: Any) -> list[ModelEntry]:
            with suppress(RuntimeError):
                seen.append(asyncio.get_running_loop())
            seen.append("called")
            return model_entries(*given)

        monkeypatch.setattr("pliant.cli.shared.reload_node.model_entries", find)
        _on_loop(node, given, args)
        assert seen == ["called"]
        assert index(node) == {"first:1": "READY"}


def test_a_hangup_changes_upstreams_and_memory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Without loading the model again; memory can grow and shrink, but neither come nor go."""
    model = f'[[model]]\nname = "first"\nsource = "{sums(tmp_path)}"\nthreads = 1\nmemory = "2MB"\n'
    given = written(tmp_path, f'memory = "8MB"\n{model}')
    args, tables = read_options(given)
    budget = MemoryBudget(8_000_000)
    with running_models(model_entries(args, tables), budget, operator_tokens=(OPERATOR,)) as node:
        assert node.repository is not None
        (first,) = node.repository.nodes

        running = args

        def hangup(text: str) -> tuple[int, set[str]]:
            nonlocal running
            caplog.clear()
            written(tmp_path, text + model)
            running = _on_loop(node, given, running)
            assert [*node.repository.nodes] == [first]  # type: ignore[union-attr]
            return budget.total_bytes, {one.name for one in first.router.states(first.clock())}

        up = "http://127.0.0.1:9"
        assert hangup(f'memory = "4MB"\nupstream = ["{up}/"]\n') == (4_000_000, {up})
        for refused, why in (
            (f'memory = "16MB"\nupstream = ["{up}0"]\nqueue = -1\n', "node.toml:3: queue is -1"),
            ('upstream = []\nmemory = "1MB"\n', "1 MB is too little for first, which needs 2 MB"),
            ("upstream = []\n", "memory (4MB to none) cannot change"),
            (
                'memory = "16MB"\ncompute-workers = 2\nlisten = "127.0.0.1:1"\n',
                "node.toml: listen (line 3, 127.0.0.1:8080 to 127.0.0.1:1), "
                "compute-workers (line 2, none to 2) cannot change",
            ),
            ('memory = "16MB"\nupstream = ["nowhere"]\n', "node.toml:2: upstream: 'nowhere'"),
        ):
            assert hangup(refused) == (4_000_000, {up})
            assert why in caplog.text
        assert hangup('memory = "16MB"\n') == (16_000_000, set())


def test_a_hangup_changes_the_paths_of_certificates_and_tokens(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """New connections see the other certificate; files that do not fit together change nothing."""
    old, new = Authority(tmp_path / "old"), Authority(tmp_path / "new")
    for folder, token in ((old, OLD), (new, NEW)):
        folder.issue("127.0.0.1")
        token_file(folder.ca.parent / "clients", token)
    model = f'[[model]]\nname = "first"\nsource = "{sums(tmp_path)}"\nthreads = 1\n'

    def text(cert: str, key: str, clients: str) -> str:
        files = {
            "tls-cert": f"{cert}/node.cert",
            "tls-key": f"{key}/node.key",
            "token-file": f"{clients}/clients",
        }
        return "".join(f'{name} = "{tmp_path}/{file}"\n' for name, file in files.items()) + model

    given = written(tmp_path, text("old", "old", "old"))
    args, tables = read_options(given)
    options = {"tls": tls_of(args), "token_files": token_files_of(args), "tokens": (OLD,)}
    with running_models(model_entries(args, tables), **options) as node:

        def status(trusted: Authority, token: str) -> int | None:
            context = ssl.create_default_context(cafile=str(trusted.ca))
            headers = {"authorization": f"Bearer {token}"}
            url = f"{node.url}/v2/models/first"
            try:
                return httpx.get(url, verify=context, headers=headers, timeout=PATIENCE_S).status_code
            except httpx.ConnectError:
                return None

        assert status(old, OLD) == 200
        for refused, why in (
            (text("new", "old", "new"), "node.toml:1: "),
            (text("new", "new", "missing"), "node.toml:3: token-file: the token file"),
            (
                text("new", "new", "new").replace("tls-", "# tls-"),
                "tls-cert (",
            ),
        ):
            written(tmp_path, refused)
            _on_loop(node, given, args)
            assert why in caplog.text
            assert (status(old, OLD), status(new, NEW)) == (200, None)
        written(tmp_path, text("new", "new", "new"))
        _on_loop(node, given, args)
        assert (status(new, NEW), status(new, OLD), status(old, NEW)) == (200, 401, None)
        written(tmp_path, text("old", "old", "old"))
        _on_loop(node, given, args)
        assert status(old, OLD) == 200, "back to the files that the node started with"


def _on_loop(node: Running, given: NodeArguments, args: NodeArguments) -> NodeArguments:
    assert node.loop is not None
    assert node.controls is not None
    work = reload_node(given, args, node.controls)
    return asyncio.run_coroutine_threadsafe(work, node.loop).result(PATIENCE_S)
