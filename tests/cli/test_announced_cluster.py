"""A node that leads a cluster announces it to workers, as a primary by `pliant cluster` does."""

import json
import signal
from pathlib import Path
from queue import Queue

import httpx
import pytest

from pliant import multicast as mdns
from pliant.cli.node import NodeArguments
from pliant.cli.shared.node_models import model_entries, read_options
from pliant.cluster.control.discover_primaries import announce_primary, discover_primaries
from pliant.cluster.net.key import make_key, read_key
from tests.cli.test_node import PATIENCE_S, node
from tests.cluster.ports import unused_ports
from tests.cluster.processes import WorkerProcess, small_model
from tests.multicast import multicast as multicast

SERVICE = "_pliant._tcp.local."


def test_a_worker_joins_a_node_that_announces_its_cluster_until_it_stops(
    cache: Path, tmp_path: Path, multicast: None
) -> None:
    """The whole way by command line: nobody tells the worker an address, and the end is announced, too."""
    key, model = tmp_path / "key", small_model(tmp_path)
    make_key(key)
    address = f"127.0.0.1:{unused_ports(1)[0]}"
    found, gone = Queue[mdns.DiscoveredService](), Queue[str]()
    words = (
        "--cluster",
        address,
        "--key",
        str(key),
        "--workers",
        "1",
        "--announce",
        "--model-name",
        "small",
        "--settle",
        "1ms",
    )
    worker = WorkerProcess("w", None, key, model, tmp_path, "--discover")
    try:
        with (
            mdns.browse_services(SERVICE, found.put, gone.put),
            node(cache, *words, model=model) as (url, process),
        ):
            infer = {"name": "ids", "shape": [1, 3], "datatype": "INT64", "data": [1, 2, 3]}
            path = f"{url}/v2/models/small/infer"
            answer = httpx.post(path, json={"inputs": [infer]}, timeout=PATIENCE_S)
            assert answer.status_code == 200, answer.text
            metrics = httpx.get(f"{url}/metrics", timeout=PATIENCE_S).text
            assert 'member="w"' in metrics
            while (heard := found.get(timeout=PATIENCE_S)).addresses != (address,):
                pass
            assert set(heard.properties) == {"key"}, "a fingerprint, as that of every primary"
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_S) == 0
            while gone.get(timeout=PATIENCE_S) != heard.name:
                pass
    finally:
        worker.kill()
    assert "looks for primaries" in worker.text()


def test_a_node_without_the_option_announces_no_cluster(tmp_path: Path, multicast: None) -> None:
    """A primary that is announced later by the same key is the first that is found."""
    key, model = tmp_path / "key", small_model(tmp_path)
    make_key(key)
    given = NodeArguments(model=[model], cluster="127.0.0.1:0", workers=0, key=key, threads=1)
    found, marker = Queue[str](), "127.0.0.1:29557"
    with discover_primaries(read_key(key), found.put):
        (silent,) = model_entries(given, ())
        opened = silent.open(None)
        with announce_primary("later", marker, read_key(key)):
            assert found.get(timeout=PATIENCE_S) == marker
        opened.local.close()
        opened.close()


@pytest.mark.parametrize(
    ("node_says", "model_says", "announced"),
    [(None, True, True), (True, None, True), (True, False, False), (None, None, False)],
)
def test_a_model_of_the_file_announces_its_cluster_as_it_or_the_node_says(
    tmp_path: Path, node_says: bool | None, model_says: bool | None, announced: bool
) -> None:
    """`announce` of a [[model]] precedes that of the node, for its cluster as for itself."""
    key = tmp_path / "key"
    make_key(key)
    said = [None if one is None else f"announce = {json.dumps(one)}\n" for one in (node_says, model_says)]
    text = f'{said[0] or ""}[[model]]\nsource = "sst2"\ncluster = "127.0.0.1:0"\n{said[1] or ""}'
    file = tmp_path / "node.toml"
    file.write_text(text)
    (entry,) = model_entries(*read_options(NodeArguments(config=file)))
    assert entry.settings.announce is announced  # type: ignore[attr-defined]


def test_a_cluster_at_every_address_is_not_announced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Workers would be told an address that no device has; the node starts, and says so."""
    key = tmp_path / "key"
    make_key(key)
    (entry,) = model_entries(
        NodeArguments(
            model=[small_model(tmp_path)], cluster="0.0.0.0:0", workers=0, key=key, announce=True, threads=1
        ),
        (),
    )
    entry.open(None).close()
    assert "the cluster at 0.0.0.0:0 is not announced" in capsys.readouterr().err
