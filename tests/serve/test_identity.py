"""Nodes pass requests on only to the same model, and say which node made an answer."""

import shutil
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from safetensors.numpy import load_file, save_file
from typer.testing import CliRunner

import pliant
from pliant.api.open_endpoint import open_endpoint
from pliant.api.resolve import resolve
from pliant.cli.app import app
from pliant.route.node_identity import MODEL_HEADER, NODE_HEADER, PROTOCOL_HEADER, VERSION_HEADER
from pliant.route.node_messages import ROUTE_HEADER
from tests.models.onnx_models import external
from tests.serve.models import Upper
from tests.serve.nodes import PATIENCE_S, fixed, reserved, running
from tests.serve.test_routing import (
    HONEST,
    LATE,
    answer_of,
    end_below,
    explained,
    metric,
    route,
    target_of,
    until,
)

LIKED = "A moving film."


def negated(directory: Path) -> Path:
    """`imdb-lstm` with the classifier's weights negated, under the same name."""
    copy = directory / "imdb-lstm"
    shutil.copytree(resolve("imdb-lstm").path, copy)
    (file,) = copy.glob("*.safetensors")
    tensors = load_file(file)
    last = ("classifier.weight", "classifier.bias")
    save_file(tensors | {name: -tensors[name] for name in last}, file)
    return copy


def test_a_model_of_the_same_name_and_other_weights_is_never_asked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A node above that had negated weights turned positive into negative, and nobody noticed."""
    expected = pliant.open("imdb-lstm", threads=1)(LIKED).label
    other = str(negated(tmp_path))
    assert pliant.open(other, threads=1)(LIKED).label != expected
    words = {"name": "text", "shape": [1], "datatype": "BYTES", "data": [LIKED]}
    with (
        running(open_endpoint(other, threads=1), name="other", **fixed(*HONEST)) as up,
        running(
            open_endpoint("imdb-lstm", threads=1), name="end", upstreams=(up.url,), **fixed(*LATE)
        ) as end,
    ):
        mismatches = f'pliant_mismatches_total{{upstream="{up.url}"}}'
        until(lambda: metric(end, mismatches) >= 1)
        answer = httpx.post(
            f"{end.url}/v2/models/imdb-lstm/infer", json={"inputs": [words]}, timeout=PATIENCE_S
        )
        assert answer.json()["outputs"][1]["data"] == [expected]
        assert answer.headers[NODE_HEADER] == "end"
        reason = explained(end, 5)["candidates"][1]["reason"]
        assert "content hash" in reason
    assert [r.levelname for r in caplog.records if "content hash" in r.message] == ["WARNING"]


@pytest.mark.usefixtures("lingering")
def test_an_upstream_that_comes_back_with_another_model_is_left_out_and_with_the_right_one_used() -> None:
    """The model may change between a ping and a request: the request itself says what it is meant for."""
    with reserved() as where, end_below(url := f"http://{where}") as end:
        with running(Upper(mark="@one"), name="up", listen=where, **fixed(*HONEST)):
            until(lambda: target_of(end, 200) == url)
        with running(Upper(mark="@two", identity="other"), name="up", listen=where, **fixed(*HONEST)):
            assert answer_of(end, "x") == "X@end"
            until(lambda: "content hash" in (explained(end, 1)["candidates"][1]["reason"] or ""))
            assert answer_of(end, "x") == "X@end"
        with running(Upper(mark="@three"), name="up", listen=where, **fixed(*HONEST)):
            until(lambda: target_of(end, 200) == url)
            assert answer_of(end, "x") == "X@three"


def test_a_request_meant_for_another_model_is_refused_before_it_runs() -> None:
    """Whoever passes it on did not look, or looked before this node was started anew."""
    served = Upper()
    with running(served) as node:
        for headers, status in (({}, 200), ({MODEL_HEADER: "upper"}, 200), ({MODEL_HEADER: "other"}, 409)):
            answer = node.post("x", headers=route(sender="below") | headers)
            assert answer.status_code == status
            assert answer.headers[MODEL_HEADER] == "upper"
        assert len(served.answered) == 2


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (route(sender="below") | {MODEL_HEADER: "other"}, 409),
        ({ROUTE_HEADER: "{"}, 400),
        ({"Pliant-Request": ""}, 400),
        ({"Inference-Header-Content-Length": "none"}, 400),
    ],
)
def test_a_refusal_names_the_node_that_refuses(headers: dict[str, str], status: int) -> None:
    """Where a request passes several nodes, the operator has to know which one said no."""
    with running(Upper(), name="here") as node:
        answer = node.post("x", headers=headers)
        assert (answer.status_code, answer.headers.get(NODE_HEADER)) == (status, "here")
        ping = httpx.get(f"{node.url}/v2/pliant/curve?model=other", timeout=PATIENCE_S)
        assert (ping.status_code, ping.headers.get(NODE_HEADER)) == (404, "here")


def test_pings_tell_model_version_and_protocol() -> None:
    """Those that ask decide by it; a client's answer carries none of it."""
    with running(Upper(), version="1.2.3") as node:
        ping = httpx.get(f"{node.url}/v2/pliant/curve", timeout=PATIENCE_S)
        assert (ping.headers[MODEL_HEADER], ping.headers[VERSION_HEADER]) == ("upper", "1.2.3")
        assert ping.headers[PROTOCOL_HEADER].isdigit()
        assert MODEL_HEADER not in node.post("x").headers


def test_an_answer_names_the_node_that_made_it_two_hops_away() -> None:
    """Without it nobody can tell whose answer was wrong."""
    with (
        running(Upper(mark="@server"), name="server", **fixed(*HONEST)) as server,
        running(Upper(), name="gateway", upstreams=(server.url,), **fixed(*LATE)) as gateway,
    ):
        until(lambda: target_of(gateway, 10) == server.url)
        with end_below(gateway.url) as end:
            until(lambda: target_of(end, 10) == gateway.url)
            assert end.post("x").headers[NODE_HEADER] == "server"


def test_every_kind_of_model_has_an_identity_that_follows_its_weights(
    tiny_model: Callable[..., Path], tmp_path: Path
) -> None:
    """Sessions and clusters over one directory or store agree; other weights never do."""
    directory = tiny_model("bert", widths=(2, 4))
    copy = tmp_path / "copy"
    shutil.copytree(directory, copy)
    same = resolve(directory).identity
    assert resolve(copy).identity == same
    tensors = load_file(copy / "model.safetensors")
    save_file({name: -array for name, array in tensors.items()}, copy / "model.safetensors")
    assert resolve(copy).identity != same
    assert resolve("random:bert-base:1").identity != resolve("random:bert-base:2").identity


def test_a_compiled_directory_has_the_identity_of_its_onnx_file(tmp_path: Path) -> None:
    """A board with what was compiled for it and the server above it with the file itself hold one model."""
    (tmp_path / "one").mkdir()
    path, out = external(tmp_path / "one"), tmp_path / "compiled"
    arguments = ["compile", str(path), "-o", str(out), "--dim", "batch=1", "--threads", "1"]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    assert resolve(out).identity == resolve(path).identity
    weights = tmp_path / "one" / "weights.bin"
    weights.write_bytes(bytes(weights.stat().st_size))
    assert resolve(path).identity != resolve(out).identity
