"""Einsum through the compiler against numpy."""

from pathlib import Path

import numpy as np
import pytest

from pliant.errors import GraphError
from pliant.ir.graph import TensorType
from pliant.kernels.emit.isa import AVX2
from tests.compiler.rules.run_node import run_node


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache for the session, so that no kernel is compiled twice."""
    return tmp_path_factory.mktemp("kernels")


SIZES = {"b": 2, "h": 3, "i": 5, "j": 7, "k": 4, "d": 6}


@pytest.mark.parametrize(
    "equation",
    [
        "ik,kj->ij",
        "ik,jk->ij",
        "ki,kj->ji",
        "bhid,bhjd->bhij",
        "bhij,bhjd->bihd",
        "bid,hd->bhi",
        "...ik,...kj->...ij",
        "ij->ji",
        "ii->i",
        "ii",
        "ij->",
        "i,i",
        "i,j->ij",
        "ik,kj",
        "bik,k->bi",
        "ik,kj,jd->id",
        "bhid,bhjd->bh",
        "k,kj->j",
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_kind_of_equation_is_numpys(equation: str, dtype: str, cache: Path) -> None:
    """Products in any order, batches, dots, diagonals, outer products, sums to nothing, three operands."""
    random = np.random.default_rng(0)
    operands = []
    for term in equation.partition("->")[0].split(","):
        shape = [SIZES[c] for c in term.replace("...", "bh")]
        operands.append(random.standard_normal(shape).astype(dtype))
    wanted = np.einsum(equation, *(x.astype(np.float64) for x in operands))
    (got,) = run_node(
        "Einsum",
        operands,
        {"equation": equation},
        types=[TensorType(dtype, wanted.shape)],
        isa=AVX2,
        cache=cache,
    )
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


def test_an_equation_that_does_not_fit_is_refused(cache: Path) -> None:
    """By name and before anything runs."""
    x = np.zeros((2, 3), np.float32)
    with pytest.raises(GraphError, match="names 1 operands"):
        run_node(
            "Einsum",
            [x, x],
            {"equation": "ij->i"},
            types=[TensorType("float32", (2,))],
            isa=AVX2,
            cache=cache,
        )
