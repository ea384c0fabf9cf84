"""In how many bits a cluster keeps weights: as many as fit, and an error that says what to do."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pliant.cluster.lead.choose_partition import make_chooser
from pliant.errors import BudgetError, InputError
from pliant.ir.capability import Capability, Interface, Links
from pliant.ir.partition import Partition, Share
from pliant.models.encoder.encoder_spec import CodedLayers, EncoderSpec
from pliant.plan.partition.partition_cost import device_weight_bytes, to_partition
from pliant.plan.partition.partitioner import solve
from pliant.plan.partition.problem import pose
from pliant.plan.split.stage_graphs import weight_bytes
from tests.plan.clusters import cluster
from tests.plan.splits import MODES, bert

pytestmark = pytest.mark.usefixtures("unchecked_shapes")

TOKENS = 16
CODED = CodedLayers(6, 0.01, (1.0, 3.0, 2.0))
SPEC = replace(bert(192, 4, 400, 3), coded=CODED)
LINKS = Links({name: Interface(1e8, 1e8) for name in "ab"})


def whole_bytes(*bits: int, spec: EncoderSpec = SPEC) -> int:
    alone = Partition("ws", "a", (Share("a", spec.n_heads, TOKENS),), TOKENS, bits=bits)
    return weight_bytes(spec, alone)["a"]


def chosen(free_bytes: int, *, spec: EncoderSpec = SPEC, **options: object) -> Partition:
    devices = {name: Capability(1.0, 1e9, free_bytes) for name in "ab"}
    choose = make_chooser(**({"weights": "auto"} | options))  # type: ignore[arg-type]
    return choose(spec, TOKENS, devices, LINKS, "a")


def test_float32_stays_where_it_fits() -> None:
    """Nothing is made worse that need not be."""
    assert chosen(whole_bytes()).bits == ()


def test_more_memory_never_means_fewer_bits() -> None:
    """From too little for anything to enough for float32."""
    sums, least = [], 0
    for free in np.linspace(0.02, 1.1, 60) * whole_bytes():
        try:
            bits = chosen(int(free)).bits
        except BudgetError:
            least = max(least, int(free))
            continue
        sums.append(sum(bits) if bits else 96)
    assert sums == sorted(sums)
    assert sums[0] < 6
    assert sums[-1] == 96
    assert {18} < set(sums), "steps between whole bits come from the more important layers"
    assert least < whole_bytes(1, 1, 1)


def test_the_more_important_layers_get_the_bit_more() -> None:
    """Importance orders layers 1, 2, 0."""
    for free in np.linspace(0.02, 0.6, 80) * whole_bytes():
        try:
            bits = chosen(int(free)).bits
        except BudgetError:
            continue
        if bits:
            assert bits[1] >= bits[2] >= bits[0]
            assert max(bits) - min(bits) <= 1


@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 10_000), mode=st.sampled_from(MODES), bits=st.integers(1, 6), part=st.floats(0.2, 1.5)
)
def test_what_is_chosen_fits(seed: int, mode: str, bits: int, part: float) -> None:
    """The closed form counts no byte less than the weights have."""
    n = 2 + seed % 3
    devices, links = cluster(seed, n)
    room = part * whole_bytes(*(bits,) * 3) / n
    rng = np.random.default_rng(seed)
    free = {name: int(room * rng.uniform(0.5, 2.0)) for name in devices}
    devices = {name: replace(device, free_bytes=free[name]) for name, device in devices.items()}
    p = pose(SPEC, TOKENS, devices, links, "d0", (bits,) * 3)
    plan, seconds = solve(p, mode)  # type: ignore[arg-type]
    if np.isfinite(seconds):
        found = to_partition(p, plan)
        assert found.bits == (bits,) * 3
        need = weight_bytes(SPEC, found)
        assert all(need[name] <= devices[name].free_bytes for name in need)
        counted = dict(zip(p.names, device_weight_bytes(p, plan)[0], strict=True))
        assert all(need[name] <= counted[name] + p.sizes.spare for name in need)


@pytest.mark.parametrize("shares", ["equal", "coedge"])
def test_other_rules_of_sharing_get_bits_too(shares: str) -> None:
    """They do not look at memory themselves."""
    found = chosen(whole_bytes() // 2, shares=shares)
    assert found.bits == (6, 6, 6)


def test_bits_that_are_asked_for_are_taken() -> None:
    """Even where more would fit: fewer bits load sooner."""
    assert chosen(whole_bytes(), weights=3).bits == (3, 3, 3)
    assert chosen(whole_bytes(), weights="fp32").bits == ()


def test_nothing_that_fits_is_an_error_that_names_the_sizes() -> None:
    """The value, the limit, the next move."""
    with pytest.raises(BudgetError, match=r"in 1 bit,.*give more .*, or add"):
        chosen(1000)
    with pytest.raises(BudgetError, match=r"Fewer bits need a store.*pliant pack"):
        chosen(whole_bytes() // 3, spec=replace(SPEC, coded=None))


def test_bits_that_the_model_does_not_have_are_refused() -> None:
    """A checkpoint has none, a store as many as it was packed with."""
    with pytest.raises(InputError, match="pliant pack"):
        chosen(whole_bytes(), weights=3, spec=replace(SPEC, coded=None))
    with pytest.raises(InputError, match="more --bits"):
        chosen(whole_bytes(), weights=5, spec=replace(SPEC, coded=replace(CODED, bits=4)))
    with pytest.raises(InputError, match="1 to 6"):
        make_chooser(weights=7)
