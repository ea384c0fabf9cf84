"""The HiGHS solver without its banner, which it prints to standard output."""

from typing import Any, final

import highspy


@final
class HighsSolver(highspy.Highs):  # type: ignore[misc]
    """`highspy.Highs` that prints nothing: the banner is printed when callbacks are enabled, before any
    option can be set.
    """

    def enableCallbacks(self) -> Any:  # noqa: N802 - highspy's name
        self.silent()
        return super().enableCallbacks()
