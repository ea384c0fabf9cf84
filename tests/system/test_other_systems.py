"""Other systems than those that have a module."""

import subprocess
import sys


def test_a_system_without_a_module_is_a_clear_error() -> None:
    """It must be said at the first import, not where some function is missing later."""
    first = "import sys; sys.platform = 'haiku'; import pliant.settings"
    run = subprocess.run([sys.executable, "-c", first], capture_output=True, text=True, check=False)
    assert run.returncode == 1
    error = run.stderr.splitlines()[-1]
    assert error.startswith("pliant.errors.KernelError: pliant runs on Linux, and this is 'haiku': use ")
