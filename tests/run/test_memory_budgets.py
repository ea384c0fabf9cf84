"""`memory=` of sessions of every kind, each in a process of its own: what it grows by is what was predicted.

A child opens a model twice: without a bound, so that libraries, kernels and heap are there, and then under
the bound. What it grows by beyond that is a tokenizer, measured apart, and the objects of a session.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import pliant
from pliant.errors import BudgetError, InputError
from pliant.run.process_memory import MemoryBudget
from tests.models.onnx_models import external

pytestmark = pytest.mark.slow

SLACK_BYTES = 4_000_000
"""Forms, plans, the hashes of a store (1.5 MB), a pool's scratch (1 MB), and what the heap rounds up to."""
ASSETS = Path(pliant.__file__).parent / "models" / "assets"

CHILD = """
import gc, json, sys
from tokenizers import Tokenizer
import pliant
from pliant.system import rss_bytes

source, memory, tokenizer = sys.argv[1:]


def opened(bound):
    session = pliant.open(source, threads=1, memory=bound)
    session.run(session.sample(16))
    return session


def tokenizer_bytes():
    before = rss_bytes()
    held = tokenizer and Tokenizer.from_file(tokenizer)
    return rss_bytes() - before, held


kept = opened(None)
gc.collect()
apart, held = tokenizer_bytes()
before = rss_bytes()
session = opened(memory)
use = session.memory
grown = use.rss_bytes - before - apart
print(json.dumps([use.budget_bytes, use.predicted_bytes, use.measured_bytes, grown]))
"""


@pytest.mark.parametrize(
    ("source", "memory"),
    [
        ("sst2", "8MB"),
        ("sst2", "3MB"),
        ("imdb-lstm", "16MB"),
        ("onnx", "1MB"),
    ],
)
def test_a_process_grows_by_what_was_predicted(source: str, memory: str, tmp_path: Path) -> None:
    """By resident memory, which is what a device runs out of.

    A first process measures the device and compiles, which leaves as much in its heap as the machine wants.
    """
    named = str(external(tmp_path, 256, 256)) if source == "onnx" else source
    tokenizer = ASSETS / source / "tokenizer.json"
    words = [sys.executable, "-c", CHILD, named, memory, str(tokenizer) if tokenizer.exists() else ""]
    for _ in range(2):
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stderr
    budget, predicted, measured, grown = json.loads(done.stdout)
    assert measured <= predicted <= budget
    assert grown <= predicted + SLACK_BYTES


@pytest.mark.parametrize("source", ["sst2", "imdb-lstm", "onnx"])
def test_every_kind_refuses_too_little_and_names_what_works(source: str, tmp_path: Path) -> None:
    """The one message that a user needs to go on."""
    named = str(external(tmp_path, 256, 256)) if source == "onnx" else source
    with (
        pytest.raises(BudgetError, match=r"Give at least \d+ bytes") as failure,
        pliant.open(named, threads=1, memory=1000) as session,
    ):
        session.run(session.sample(16))
    least = int(str(failure.value).partition("Give at least ")[2].split()[0])
    with pliant.open(named, threads=1, memory=least) as session:
        session.run(session.sample(16))
        assert session.memory.measured_bytes <= least == session.memory.budget_bytes


def test_models_that_cannot_share_a_budget_say_so(tmp_path: Path) -> None:
    """It would be ignored otherwise."""
    with MemoryBudget(10**8) as shared, pytest.raises(InputError, match="cannot share a MemoryBudget"):
        pliant.open(external(tmp_path, 256, 256), memory=shared)
