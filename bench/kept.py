"""What was measured is kept a part at a time, so that a bench that was stopped goes on where it was.

A part is measured anew when the tree differs from the one it was measured on. Knows no bench.
"""

import json
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from report import ROOT


@dataclass(frozen=True, slots=True)
class Kept:
    """JSON files in `folder`; `only` names the subjects that may be measured, all when it is empty."""

    folder: Path
    tree: str
    only: tuple[str, ...] = ()

    def get(self, part: str, subject: str, measure: Callable[[], Any]) -> Any:
        """The part's result of a subject: kept, or measured now; None where it may not be."""
        path = self.folder / f"{part}-{subject}.json".replace(" ", "-").lower()
        if path.exists():
            found = json.loads(path.read_text())
            if found["tree"] == self.tree:
                return found["result"]
        if self.only and subject not in self.only:
            return None
        print(f"measuring {part}" + (f" of {subject}" if subject != part else ""), flush=True)
        result = json.loads(json.dumps(measure()))
        self.folder.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"tree": self.tree, "result": result}, indent=1))
        return result


def tree() -> str:
    """The source measured: the commit, and a hash of what differs from it under src and bench."""
    head = _git("rev-parse", "HEAD").strip()
    changed = _git("diff", "HEAD", "--", "src", "bench") + _git("status", "--porcelain", "--", "src", "bench")
    return head + (f"+{sha256(changed.encode()).hexdigest()[:12]}" if changed else "")


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False).stdout
