"""The solver of linear and integer programs, without its banner, which went to standard output."""

from typing import Any, final

import highspy


@final
class SilentHighs(highspy.Highs):  # type: ignore[misc]
    """`highspy.Highs` that prints nothing: its banner comes with the callbacks, before any option is set."""

    def enableCallbacks(self) -> Any:  # noqa: N802 - highspy's name
        self.silent()
        return super().enableCallbacks()
