"""The command `pliant`: one verb, one file. Knows options and how answers are shown, nothing else."""


def main() -> None:
    """Run the command line; errors of pliant's own end it with status 1 and a message."""
    from pliant.cli.app import app

    app()
