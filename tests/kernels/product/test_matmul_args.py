"""How a product is cut into units."""

from hypothesis import given
from hypothesis import strategies as st

from pliant.kernels.product.matmul_args import COLUMNS, blocking


@given(
    n_batch=st.integers(1, 9),
    n_rows=st.integers(1, 700),
    groups=st.integers(1, 300),
    n_threads=st.sampled_from([1, 2, 3, 4, 8]),
    wide=st.sampled_from([1, 3]),
)
def test_units_cover_a_product_in_parts_of_fair_size(
    n_batch: int, n_rows: int, groups: int, n_threads: int, wide: int
) -> None:
    """Units too few lose columns; parts too large leave a thread idle or A outside L2."""
    blocks = blocking(n_batch, n_rows, groups * COLUMNS, n_threads, wide)
    row_blocks = -(-n_rows // blocks.row_block)
    units = blocks.units(n_batch, n_rows, groups * COLUMNS)
    assert units == n_batch * row_blocks * -(-groups // blocks.panel)
    assert wide <= blocks.panel <= 12
    assert blocks.panel % wide == 0
    assert 1 <= blocks.row_block <= 144


def test_two_threads_get_equal_shares_of_what_can_be_halved() -> None:
    """GPT-NeoX's 2048 columns once were 13 units, of which one thread did 7: 6 % of the product's time."""
    for n_columns in (384, 512, 768, 1536, 2048, 3072):
        blocks = blocking(1, 128, n_columns, 2)
        n_units = blocks.units(1, 128, n_columns)
        assert n_units % 2 == 0, n_columns
        assert n_units * blocks.panel * COLUMNS == n_columns
