"""Store results part by part, so that a stopped bench can be resumed.

A part is measured again if the source tree differs from the one that it was measured on.
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
class StoredRuns:
    """JSON files in `folder`; `only` names the subjects that may be measured, all when it is empty.

    With `is_old_taken`, stored results of other subjects are used even if they were measured on another tree.
    """

    folder: Path
    tree: str
    only: tuple[str, ...] = ()
    is_old_taken: bool = False

    def get(self, part: str, subject: str, measure: Callable[[], Any]) -> Any:
        """The part's result for a subject: stored, or measured now; None if it may not be measured."""
        path = self._path(part, subject)
        is_any_taken = self.is_old_taken and subject not in self.only
        if path.exists():
            found = json.loads(path.read_text())
            if is_any_taken or found["tree"] == self.tree:
                return found["result"]
        if self.only and subject not in self.only:
            return None
        print(f"measuring {part}" + (f" of {subject}" if subject != part else ""), flush=True)
        result = json.loads(json.dumps(measure()))
        self.folder.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"tree": self.tree, "result": result}, indent=1))
        return result

    def commit(self, part: str, subject: str) -> str:
        """The commit that a part's result was measured on."""
        commit, _, differs = str(json.loads(self._path(part, subject).read_text())["tree"]).partition("+")
        return commit[:7] + ("-dirty" if differs else "")

    def _path(self, part: str, subject: str) -> Path:
        return self.folder / f"{part}-{subject}.json".replace(" ", "-").lower()


def tree() -> str:
    """The measured source: the commit, and a hash of uncommitted changes under src and bench."""
    head = _git("rev-parse", "HEAD").strip()
    changed = _git("diff", "HEAD", "--", "src", "bench") + _git("status", "--porcelain", "--", "src", "bench")
    return head + (f"+{sha256(changed.encode()).hexdigest()[:12]}" if changed else "")


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False).stdout
