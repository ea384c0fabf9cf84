"""How long devices take to load the weights of another plan."""

from pliant.cluster.lead.plan_inputs import LoadRates


def test_devices_load_at_their_own_rate_at_the_same_time() -> None:
    """The slowest decides; a device that loaded nothing shows no rate."""
    rates = LoadRates()
    before_s = rates.seconds({"a": 10**8, "b": 10**6})
    assert before_s == 100 * rates.seconds({"a": 0, "b": 10**6})
    rates.observe({"a": (1000, 0.5), "b": (0, 0.0)})
    assert rates.seconds({"a": 4000, "b": 0}) == 2.0
    assert rates.seconds({"a": 0, "b": 10**8}) == before_s
    rates.observe({"a": (1000, 0.25)})
    assert rates.seconds({"a": 4000}) == 1.0
