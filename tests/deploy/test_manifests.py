"""Manifests and units: their schemas, and what of them must agree with the command line."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.prometheus import DEPLOY
from tests.guards.test_options import verbs

PYTHON = DEPLOY.parent / ".venv-kserve" / "bin" / "python"
MANIFESTS = sorted([*(DEPLOY / "kubernetes").glob("*.yaml"), *(DEPLOY / "kserve").glob("*.yaml")])
UNIT = DEPLOY / "systemd" / "pliant-node.service"


def documents() -> list[dict[str, Any]]:
    return [one for path in MANIFESTS for one in yaml.safe_load_all(path.read_text())]


def checked(*paths: Path) -> "subprocess.CompletedProcess[str]":
    if not PYTHON.exists():
        pytest.skip("no .venv-kserve with the KServe SDK; .ci/run makes it")
    check = Path(__file__).with_name("check_models.py")
    command = [str(PYTHON), "-P", "-W", "ignore", str(check), *map(str, paths)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_manifests_fit_the_models_of_kubernetes_and_kserve() -> None:
    done = checked(*MANIFESTS)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_misspelt_field_and_a_missing_one_are_found(tmp_path: Path) -> None:
    """The check can fail: else it would say nothing."""
    (good,) = (one for one in documents() if one["kind"] == "Deployment")
    pod = good["spec"]["template"]["spec"]
    pod["containers"][0]["readynessProbe"] = pod["containers"][0].pop("readinessProbe")
    del good["spec"]["selector"]
    path = tmp_path / "bad.yaml"
    path.write_text(yaml.safe_dump(good))
    done = checked(path)
    assert done.returncode == 1
    assert "has no field readynessProbe" in done.stdout
    assert "selector" in done.stdout


def commands() -> list[list[str]]:
    """What containers and the unit give to `pliant node`."""
    found = []
    for one in documents():
        spec = one.get("spec", {})
        pod = spec.get("template", {}).get("spec", spec)
        found += [container["args"] for container in pod.get("containers", ())]
    start = re.search(r"^ExecStart=(.*)$", UNIT.read_text(), re.MULTILINE)
    container = re.search(r"^CMD \[(.*)\]$", (DEPLOY / "Containerfile").read_text(), re.MULTILINE)
    assert start is not None
    assert container is not None
    found.append(shlex.split(start[1])[3:])
    found.append([word.strip(' "') for word in container[1].split(",")])
    return found


def test_every_option_in_a_manifest_is_one_of_pliant_node() -> None:
    known = {
        name for verb, command in verbs() if verb == "node" for one in command.params for name in one.opts
    }
    used = {word.partition("=")[0] for words in commands() for word in words if word.startswith("--")}
    assert len(used) > 4
    assert used <= known


def test_probes_ask_paths_that_a_node_answers_without_a_token() -> None:
    text = "".join(path.read_text() for path in MANIFESTS)
    assert set(re.findall(r"path: (/\S+?)[,}]", text)) == {"/v2/health/live", "/v2/health/ready"}


def kserve_runtime() -> dict[str, Any]:
    (runtime,) = (one["spec"] for one in documents() if one["kind"] == "ServingRuntime")
    return runtime


def test_a_model_of_kserve_has_the_name_of_its_service() -> None:
    """KServe replaces the template; clients send it in URLs. The folder's name is always `models`."""
    assert "--model-name={{.Name}}" in kserve_runtime()["containers"][0]["args"]


def test_a_node_of_kserve_has_as_long_to_start_as_one_of_kubernetes() -> None:
    """The probe for life began at once and ended a node that was packing its model."""
    (deployment,) = (one for one in documents() if one["kind"] == "Deployment")
    (node,) = deployment["spec"]["template"]["spec"]["containers"]
    probe, given = node["startupProbe"], kserve_runtime()["containers"][0]["startupProbe"]
    assert {**given, "httpGet": None} == {**probe, "httpGet": None}
    assert given["httpGet"] == {"path": "/v2/health/live", "port": 8080}


def test_the_cache_of_a_node_of_kserve_is_a_volume() -> None:
    """The root file system may be read-only, and the user another one than the image's."""
    runtime = kserve_runtime()
    (container,) = runtime["containers"]
    (mount,) = container["volumeMounts"]
    assert {"name": "PLIANT_CACHE", "value": mount["mountPath"]} in container["env"]
    assert runtime["volumes"] == [{"name": mount["name"], "emptyDir": {}}]


def test_a_pod_has_longer_to_end_than_a_node_settles() -> None:
    (deployment,) = (one for one in documents() if one["kind"] == "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    (settle,) = (arg for arg in pod["containers"][0]["args"] if arg.startswith("--settle="))
    assert pod["terminationGracePeriodSeconds"] > 2 * int(settle.removeprefix("--settle=").rstrip("s"))


def test_systemd_accepts_the_unit() -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is missing: apt-get install systemd")
    done = subprocess.run([program, "verify", str(UNIT)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert UNIT.name not in done.stderr, done.stderr


def test_the_adapter_gives_the_metric_by_which_pods_are_scaled() -> None:
    """Another name would leave the scaler at `<unknown>`, without an error anywhere."""
    (scaler,) = (one for one in documents() if one["kind"] == "HorizontalPodAutoscaler")
    (config,) = (one for one in documents() if one["kind"] == "ConfigMap")
    (rule,) = yaml.safe_load(config["data"]["config.yaml"])["rules"]
    (metric,) = (one["pods"]["metric"]["name"] for one in scaler["spec"]["metrics"])
    assert rule["name"]["as"] == metric
    assert rule["seriesQuery"].startswith(metric + "{")
    assert metric in (DEPLOY / "grafana" / "pliant.json").read_text()  # whose series a test finds at a node
