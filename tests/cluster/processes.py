"""Workers as real processes on loopback, and a small model that needs no file."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pliant.cluster.control.timeouts import ClusterTimeouts

WAIT_S = 240.0
"""Long enough for workers to start on a machine that does something else meanwhile."""
PATIENT = ClusterTimeouts(silence_s=15.0, least_s=60.0, report_s=10.0)
"""Where faults are not what is tested: a busy machine is none. Who is killed is missed at once anyway."""
MAIN = "from pliant.cli import main; main()"
CONFIG = {
    "model_type": "bert",
    "architectures": ["BertModel"],
    "vocab_size": 100,
    "hidden_size": 48,
    "num_hidden_layers": 6,
    "num_attention_heads": 6,
    "intermediate_size": 96,
    "max_position_embeddings": 64,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "hidden_act": "gelu",
}


def small_model(folder: Path) -> str:
    """What `pliant` calls a BERT of 6 layers with random weights."""
    path = folder / "small.json"
    path.write_text(json.dumps(CONFIG))
    return f"random:{path}"


def command(*words: str) -> list[str]:
    return [sys.executable, "-c", MAIN, *words]


class WorkerProcess:
    """`pliant worker` as a process of its own; what it says is in `log`."""

    def __init__(self, name: str, join: str | None, key: Path, model: str, folder: Path, *more: str) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        with self.log.open("ab") as log:
            where = () if join is None else ("--join", join)
            words = ("worker", *where, "--name", name, "--key", str(key), "--model", model)
            self.process = subprocess.Popen(
                command(*words, "--threads", "1", "--silence", "15s", *more),
                stdout=log,
                stderr=log,
                env=os.environ.copy(),
            )

    def signal(self, number: int) -> None:
        if self.process.poll() is None:
            self.process.send_signal(number)

    def freeze(self) -> None:
        self.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.signal(signal.SIGCONT)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.process.wait(20)

    def text(self) -> str:
        return self.log.read_text()


@contextmanager
def workers(
    join: str, key: Path, model: str, folder: Path, names: str = "ab", *more: str
) -> Iterator[dict[str, WorkerProcess]]:
    """Some workers, all gone afterwards."""
    found = {name: WorkerProcess(name, join, key, model, folder, *more) for name in names}
    try:
        yield found
    finally:
        for worker in found.values():
            worker.kill()
