"""Code for each row of this architecture answers what this machine's own row does.

AVX-512 runs through its portable lowering where the CPU lacks it: the same generators, vectors and tiles.
"""

from pathlib import Path

import pytest

from pliant.compiler.executable.call import Target
from pliant.compiler.executable.image import make_image
from pliant.kernels.emit.isa import AVX2, AVX512, X86_64, Isa, to_portable, vector_isa
from pliant.kernels.runtime.jit import Library
from pliant.kernels.runtime.thread_pool import ThreadPool
from pliant.run.array_sessions.onnx_session import OnnxSession
from pliant.run.graph.array_stage import open_image
from pliant.run.graph.model_options import ModelOptions
from tests.compiler.compare import assert_same
from tests.compiler.family_models import feeds_of, model_of
from tests.compiler.union import union

# Families whose own tests take one row only, and whole models; the others are tested on every row.
NAMES = [
    *("bert", "rotary", "attention_fused", "attention_mask", "conv_transposed", "conv_normalized"),
    *("moves", "sums", "einsum", "int8_chain"),
]
ROWS = [isa for isa in map(to_portable, (AVX512, AVX2, X86_64)) if isa != vector_isa()]


@pytest.mark.slow
@pytest.mark.parametrize("isa", ROWS, ids=lambda isa: isa.name)
def test_rows_agree(isa: Isa, tmp_path: Path) -> None:
    """As one graph: sums in another order and products rounded twice are all that may differ."""
    answers = []
    for row in (vector_isa(), isa):
        library = Library(row, None if row == vector_isa() else tmp_path)
        with ThreadPool(2, library) as pool:
            graphs, feeds = {}, {}
            for name in NAMES:
                given = feeds_of(name)
                model = OnnxSession(model_of(name), pool, library, ModelOptions({}), ahead=False)
                graphs[name] = model.graph(given)
                feeds |= {f"{name}:{x}": given[x] for x in graphs[name].inputs}
            image = make_image(union(graphs), Target(row, 2))
            answers.append(open_image(image, pool, library).run(feeds))
    for x, right in answers[0].items():
        assert_same(answers[1][x], right, x)
