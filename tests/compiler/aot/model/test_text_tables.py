"""A tokenizer in C against the library that it was made from, on text that nobody would write."""

import json
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from pliant.api.compile_library import LibraryOptions, compile_recurrent
from pliant.api.model import RecurrentNetwork
from pliant.compiler.aot.model.text_tables import fnv1a, hash_slots, text_tables
from pliant.compiler.executable.call import Target
from pliant.kernels.emit.isa import host_isa
from pliant.models.recurrent.recurrent_spec import RecurrentSpec
from pliant.models.tokenizer import open_tokenizer
from tests.compiler.aot.model.c_model import CModel
from tests.recurrent_models import write_recurrent

ASSETS = Path(__file__).parents[4] / "src" / "pliant" / "models" / "assets"
MARKS = "".join(c for c in map(chr, range(0x110000)) if unicodedata.combining(c))
ODD = "\0\t\n\r\x1c\x85\xa0\xad\u0130\u0131\u0344\u034f\u03a3\u1e9e\u2028\u200b\u200d\u212a\u3000\u302e\ufb01"
ODD += "\ufeff\ufffd\uff21\u09c7\u09be\u1100\u1161\u11a8가각中豈\U0002f800㈠ﷺ\U0001d15e\U0001d165\U0001d16d"
ODD += "\U00016ff0\U0010fffe\u0378\ue000"
KINDS = ("sst2", "imdb-lstm")
MEMORY = 9


@pytest.fixture(scope="module")
def models(linker: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """Libraries with the tokenizers of the shipped models, by their names with `_`, and these tokenizers."""
    opened = {}
    for kind in KINDS:
        folder = tmp_path_factory.mktemp("text")
        tokenizer = (ASSETS / kind / "tokenizer.json").read_bytes()
        vocab = len(json.loads(tokenizer)["model"]["vocab"])
        directory = write_recurrent(folder / "model", RecurrentSpec("lstm", vocab, 4, 4, labels=("a", "b")))
        (directory / "tokenizer.json").write_bytes(tokenizer)
        options = LibraryOptions((), 0, 512, Target(host_isa(), 1))
        report = compile_recurrent(RecurrentNetwork("text", directory), "text", options, folder / "out")
        assert report.library is not None, report.reason
        assert report.ids_only is None
        inner = tokenizers.Tokenizer.from_buffer(tokenizer)
        inner.no_padding()
        inner.no_truncation()
        opened[kind] = (CModel(report.library, report.output), inner)
    with opened[KINDS[0]][0], opened[KINDS[1]][0]:
        yield SimpleNamespace(**{kind.replace("-", "_"): x for kind, x in opened.items()})


def hostile() -> st.SearchStrategy[str]:
    """Words, marks in any order, odd code points, special tokens, long words."""
    piece = st.one_of(
        st.text(st.characters(exclude_categories=("Cs",)), max_size=4),
        st.text(st.sampled_from(MARKS), max_size=5),
        st.text(st.sampled_from(MARKS), min_size=60, max_size=150),
        st.text(st.sampled_from(ODD), max_size=4),
        st.text(st.sampled_from("abcdefghij é.,-'\n"), max_size=12),
        st.sampled_from(["[CLS]", "[SEP]", "[MASK]", "[UNK]", "[PAD]", "[", "]", "##", "<br />", "<br"]),
        st.builds(lambda c, n: c * n, st.sampled_from("aé中"), st.sampled_from([99, 100, 101, 3000])),
    )
    return st.lists(piece, max_size=12).map("".join)


@pytest.mark.parametrize("kind", ["sst2", "imdb_lstm"])
@settings(max_examples=400)
@given(text=hostile())
def test_hostile_text_is_cut_as_the_library_does(models: SimpleNamespace, kind: str, text: str) -> None:
    """WordPiece after BERT's normalizer, and whole words after NFKC."""
    model, inner = getattr(models, kind)
    _, ids = model.encode(text.encode(), 1 << 14)
    assert ids == inner.encode(text).ids


@pytest.mark.parametrize("kind", ["sst2", "imdb_lstm"])
@settings(max_examples=300)
@given(data=st.one_of(st.binary(max_size=40), hostile().map(lambda t: t.encode()[1:-1])))
def test_invalid_utf8_is_read_as_replacement_characters(
    models: SimpleNamespace, kind: str, data: bytes
) -> None:
    """As Python's decoder has them: one for the longest beginning of a character that is cut."""
    model, inner = getattr(models, kind)
    _, ids = model.encode(data, 1 << 14)
    assert ids == inner.encode(data.decode(errors="replace")).ids


@pytest.mark.parametrize("kind", ["sst2", "imdb_lstm"])
def test_every_code_point_is_known(models: SimpleNamespace, kind: str) -> None:
    """The tables are of the tokenizer's version of Unicode, whichever Python's is."""
    model, inner = getattr(models, kind)
    points = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    for i in range(0, len(points), 4096):
        text = "".join(f"a{chr(c)}b " for c in points[i : i + 4096])
        assert model.encode(text.encode(), 1 << 17)[1] == inner.encode(text).ids, hex(points[i])


def test_more_ids_than_there_is_room_for_are_counted(models: SimpleNamespace) -> None:
    """The caller learns how many there are, and nothing is written behind its memory."""
    model, inner = models.sst2
    text = "a b c d e"
    assert len(inner.encode(text).ids) == 7
    code, ids = model.encode(text.encode(), 3)
    assert (code, ids) == (0, inner.encode(text).ids[:3])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model": {"type": "BPE"}}, "its tokenizer is BPE"),
        ({"pre_tokenizer": {"type": "Whitespace"}}, "are not cut as BERT's are"),
        ({"normalizer": {"type": "Strip", "strip_left": True, "strip_right": True}}, "other steps"),
    ],
)
def test_a_tokenizer_that_c_has_not_is_told(tmp_path: Path, change: dict[str, object], said: str) -> None:
    """Then the library takes ids; it must not take text and cut it otherwise."""
    about = json.loads((ASSETS / "imdb-lstm" / "tokenizer.json").read_text())
    if "model" in change:
        change = {"model": {"type": "BPE", "vocab": {"[PAD]": 0, "[UNK]": 1, "a": 2}, "merges": []}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(about | change))
    found = text_tables(open_tokenizer(tmp_path, RecurrentSpec("lstm", 16000, 4, 4)))
    assert isinstance(found, str)
    assert said in found


def test_marks_in_a_row_have_a_limit(models: SimpleNamespace) -> None:
    """The one that the header and the manual say: memory for a text is bounded."""
    model, _ = models.sst2
    assert [model.encode(f"e{MARKS[0] * n}".encode(), 8)[0] for n in (65535, 65536)] == [0, MEMORY]


@pytest.mark.parametrize(
    ("most", "said"), [(256, None), (257, "up to 257 characters; in C they have at most 256")]
)
def test_words_longer_than_c_keeps_are_refused(tmp_path: Path, most: int, said: str | None) -> None:
    """C keeps 1024 bytes of a word, which are 256 characters of four bytes; longer ones were unknown."""
    about = json.loads((ASSETS / "sst2" / "tokenizer.json").read_text())
    about["model"]["max_input_chars_per_word"] = most
    (tmp_path / "tokenizer.json").write_text(json.dumps(about))
    found = text_tables(open_tokenizer(tmp_path, RecurrentSpec("lstm", 30522, 4, 4)))
    assert isinstance(found, str) == (said is not None)
    assert said is None or said in str(found)


def test_a_vocabulary_with_a_longer_word_than_c_keeps_is_refused(tmp_path: Path) -> None:
    """Whole words have no other limit."""
    about = json.loads((ASSETS / "imdb-lstm" / "tokenizer.json").read_text())
    vocab = about["model"]["vocab"]
    vocab["é" * 513] = len(vocab)
    (tmp_path / "tokenizer.json").write_text(json.dumps(about))
    found = text_tables(open_tokenizer(tmp_path, RecurrentSpec("lstm", len(vocab), 4, 4)))
    assert isinstance(found, str)
    assert "longer than 1024 bytes" in found


@given(words=st.lists(st.binary(min_size=1, max_size=8), unique=True, max_size=50))
def test_every_word_is_found_in_its_table(words: list[bytes]) -> None:
    """From its hash on, before a free slot."""
    slots = hash_slots(words).tolist()
    for number, word in enumerate(words):
        at = fnv1a(word) % len(slots)
        while slots[at] != number + 1:
            assert slots[at] != 0
            at = (at + 1) % len(slots)
