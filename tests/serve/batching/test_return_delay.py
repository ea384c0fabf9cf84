"""The way over the event loop follows what answers took lately, and no single one."""

from pliant.serve.batching.return_delay import ReturnDelay


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_nothing_is_added_before_answers_were_seen() -> None:
    assert ReturnDelay(Clock()).bound_s == 0.0


def test_the_bound_is_what_95_of_100_take() -> None:
    delay = ReturnDelay(Clock())
    for i in range(1, 257):
        delay.observe(i / 256)
    assert delay.bound_s == 243 / 256


def test_a_single_stall_moves_nothing_and_old_times_are_forgotten() -> None:
    delay = ReturnDelay(Clock())
    for seconds in [*[0.001] * 31, 5.0, *[0.001] * 32]:
        delay.observe(seconds)
    assert delay.bound_s == 0.001
    for _ in range(256):
        delay.observe(0.0)
    assert delay.bound_s == 0.0


def test_what_is_seldom_asked_forgets_by_time() -> None:
    """It refused requests for half a minute after a few slow answers, of which each showed nothing new."""
    clock = Clock()
    delay = ReturnDelay(clock)
    for _ in range(4):
        delay.observe(0.1)
    assert delay.bound_s == 0.1
    clock.now_s = 8.0
    delay.observe(0.001)
    assert delay.bound_s == 0.1
    clock.now_s = 12.0
    delay.observe(0.002)
    assert delay.bound_s == 0.001
    clock.now_s = 23.0
    assert delay.bound_s == 0.0


def test_clocks_that_step_back_add_nothing() -> None:
    delay = ReturnDelay(Clock())
    for _ in range(8):
        delay.observe(-1.0)
    assert delay.bound_s == 0.0
