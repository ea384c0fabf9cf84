"""What a failed test leaves open is reported for that test and no other."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTS = """
import gc, socket
from tests.leaks import collected

class Socket(socket.socket):
    pass

def test_fails_with_an_open_socket():
    held = Socket()
    held.cycle = held
    assert False

def test_unrelated():
    gc.collect()
"""


def test_a_socket_left_open_by_a_failed_test_fails_no_other_test(tmp_path: Path) -> None:
    """Its ResourceWarning would come when the garbage collector runs, and blame the test of that moment."""
    path = tmp_path / "test_it.py"
    path.write_text(TESTS)
    options = ("-q", "-W", "error", "-p", "no:cacheprovider", "-p", "no:xdist", "-c", "/dev/null")
    command = [sys.executable, "-m", "pytest", *options, "--rootdir", str(tmp_path), str(path)]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    assert printed.count("::test_fails_with_an_open_socket") == 2, printed  # it failed, and it leaked
    assert "1 failed, 1 passed, 1 error" in printed
