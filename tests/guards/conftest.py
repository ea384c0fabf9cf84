"""What guards may use beside the fixtures of every test."""

import json
from collections.abc import Callable, Mapping

import pytest

from tests.conftest import GOLDEN

Record = Mapping[str, object]


@pytest.fixture
def golden_record(request: pytest.FixtureRequest) -> Callable[..., None]:
    """`golden_record(name, record)` compares with tests/golden/guards/name and names each key that differs.

    Values are what JSON can hold. `sources`, where given, says what made the value of a key.
    """

    def compare(name: str, record: Record, sources: Mapping[str, str] | None = None) -> None:
        path = GOLDEN / "guards" / name
        if request.config.getoption("--update-golden"):
            path.write_text(_text(record), encoding="utf-8")
        kept = json.loads(path.read_text(encoding="utf-8"))
        differences = [
            f"{key} ({(sources or {}).get(key, name)}): {_shown(kept, key)} -> {_shown(record, key)}"
            for key in sorted(kept.keys() | record.keys())
            if key not in kept or key not in record or kept[key] != record[key]
        ]
        assert not differences, "\n".join(
            [f"{name}: {len(differences)} entries changed; look, then run --update-golden", *differences[:40]]
        )

    return compare


def _text(record: Record) -> str:
    """JSON with a line for each key."""
    lines = [f" {json.dumps(key)}: {json.dumps(record[key], sort_keys=True)}" for key in sorted(record)]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _shown(record: Record, key: str) -> str:
    return json.dumps(record[key], sort_keys=True)[:200] if key in record else "(none)"
