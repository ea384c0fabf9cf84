"""Guards: what must stay as it is while code moves between modules and names change.

Each file fixes one property as golden data in tests/golden/guards: the code that generators write, the text
of executables, answers to the bit, what an import loads. A commit that only moves or renames code leaves all
of them unchanged. A commit that changes one on purpose runs

    pytest tests/guards --update-golden

and says in its message why the values are others. The imports of what is guarded stand at the top of each
file and nowhere else, so that a renamed module is an edit of one line.
"""
