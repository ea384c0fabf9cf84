"""The scores of a reply."""

import numpy as np
import pytest

from pliant.ir.reply import label_scores


def test_scores_of_labels_are_their_softmax() -> None:
    """Against numpy's float64, also where exp alone overflows."""
    logits = np.array([0.5, -2.0, 3.0], np.float32)
    shares = np.exp(logits.astype(np.float64))
    assert label_scores(logits) == pytest.approx(shares / shares.sum(), rel=1e-12)
    assert label_scores(logits * 1e3) == pytest.approx([0.0, 0.0, 1.0])


@pytest.mark.parametrize("logit", [-3e38, -8.5, -0.25, 0.0, 0.25, 11.0, 3e38])
def test_the_score_of_a_single_label_is_its_sigmoid(logit: float) -> None:
    """A softmax of one number is 1: a reranker's scores would not tell texts apart."""
    with np.errstate(over="ignore"):
        want = 1.0 / (1.0 + np.exp(-np.float64(np.float32(logit))))
    assert label_scores(np.array([logit], np.float32)) == pytest.approx([want], rel=1e-12)
