"""The command `pliant`: one verb, one file."""

import sys


def main() -> None:
    """Run the command line; errors of pliant's own end it with status 1 and a message, Ctrl-C with 130."""
    try:
        from pliant.cli.app import app

        app()
    except KeyboardInterrupt:  # while modules are still being read
        sys.exit(130)
