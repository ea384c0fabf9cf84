"""`python -m pliant`: the command line, where its script is not on the path."""

from pliant.cli import main

if __name__ == "__main__":
    main()
