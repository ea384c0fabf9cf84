"""Text becomes the tokens the model was trained on, whole, or a clear error."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from pliant.errors import InputError, ModelError
from pliant.models.tokenizer import Tokenizer, open_tokenizer, require_content
from tests.tiny import VOCAB, WORDS, tiny_spec, write_tokenizer

_TEXTS = st.lists(st.sampled_from(WORDS), min_size=1, max_size=40).map(" ".join)


@cache
def _tokenizer() -> Tokenizer:
    with TemporaryDirectory() as folder:
        return open_tokenizer(write_tokenizer(Path(folder)), tiny_spec())


@pytest.fixture
def bert(tmp_path: Path) -> Tokenizer:
    return open_tokenizer(write_tokenizer(tmp_path), tiny_spec())


@pytest.mark.parametrize(
    ("text", "pair"), [("", None), (" \t\n", None), ("good", ""), ("", "good"), ("good", "  ")]
)
def test_an_empty_text_is_refused(bert: Tokenizer, text: str, pair: str | None) -> None:
    """Two special tokens alone always give the same, meaningless answer."""
    with pytest.raises(InputError, match="empty"):
        bert.encode(text, pair)


def test_the_limit_is_reached_but_never_passed(bert: Tokenizer) -> None:
    """Cutting text off silently answers another question; the error says how far off it is."""
    assert bert.encode("good " * 22).n_tokens == 24
    with pytest.raises(InputError, match=r"25 tokens long.*at most 24"):
        bert.encode("good " * 23)
    with pytest.raises(InputError, match=r"27 tokens long"):
        bert.encode("good " * 12, "bad " * 12)


@given(text=_TEXTS, pair=st.none() | _TEXTS, most=st.integers(5, 30))
def test_what_is_cut_fits_and_no_more_is_cut_than_must_be(text: str, pair: str | None, most: int) -> None:
    """Beginnings of what was given, at the limit where anything was cut, and unchanged where it fitted."""
    tokenizer = _tokenizer()
    whole = len(tokenizer.inner.encode(text, pair).ids)
    kept, kept_pair = tokenizer.truncate(text, pair, most)
    assert text.startswith(kept)
    assert (pair is None) == (kept_pair is None)
    assert pair is None or pair.startswith(kept_pair or "")
    assert tokenizer.encode(kept, kept_pair).n_tokens == min(whole, most, 24)
    if whole <= min(most, 24):
        assert (kept, kept_pair) == (text, pair)


def test_a_text_too_long_by_far_is_not_cut_into_tokens(
    bert: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1 MB took a second before it was refused; many blanks and one long word are few tokens."""
    assert bert.encode("good" + " " * 10_000).n_tokens == 3
    assert bert.encode("x" * 10_000 + " good").n_tokens < 24
    n_chars: list[int] = []

    def counted(text: str, what: str) -> None:
        n_chars.append(len(text))
        require_content(text, what)

    monkeypatch.setattr("pliant.models.tokenizer.require_content", counted)
    with pytest.raises(InputError, match=r"text's 1000000 characters are \d+ tokens long.*at most 24"):
        bert.encode("good " * 200_000)
    assert sum(n_chars) < 1000


def test_the_longer_text_of_a_pair_is_cut_first() -> None:
    """As transformers' `longest_first`: a short question keeps all its words beside a long passage."""
    kept, pair = _tokenizer().truncate("good film", "bad " * 40)
    assert kept == "good film"
    assert (pair or "").split() == ["bad"] * 19


@pytest.mark.parametrize(("text", "kept"), [("ab\U0001f600", "ab"), ("ab\U0001f600cd\u00e9", "ab")])
def test_a_character_of_several_tokens_is_kept_or_cut_as_one(text: str, kept: str) -> None:
    """The tokens of an emoji share its offsets: a cut after the first of them leaves the text as it is."""
    bytes_ = {one: i for i, one in enumerate(sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()))}
    inner = tokenizers.Tokenizer(tokenizers.models.BPE(bytes_, []))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer = Tokenizer(inner, tiny_spec(vocab=256), Path("tokenizer.json"))
    for most in (2, 3, 4, 5):
        assert tokenizer.truncate(text, max_tokens=most)[0] == kept
    assert tokenizer.truncate(text, max_tokens=6)[0] == text[:3]
    assert tokenizer.truncate("go", text, 2 + 4) == ("go", kept)
    with pytest.raises(InputError, match="fits into 3 tokens"):
        tokenizer.truncate("\U0001f600", max_tokens=3)


@pytest.mark.parametrize("is_first", [True, False])
def test_a_text_without_tokens_leaves_all_room_to_the_other(bert: Tokenizer, *, is_first: bool) -> None:
    """BERT's normaliser removes invisible characters; a pair with such a text was an IndexError."""
    bert.inner.normalizer = tokenizers.normalizers.BertNormalizer()
    long, blank = "good film " * 40, "\u200b"
    texts = bert.truncate(*((blank, long) if is_first else (long, blank)))
    kept = texts[1 if is_first else 0] or ""
    assert texts[0 if is_first else 1] == blank
    assert len(kept.split()) == bert.spec.max_tokens - 3
    assert long.startswith(kept)
    with pytest.raises(InputError, match="allow more"):
        bert.truncate(blank, max_tokens=1)


@pytest.mark.parametrize("text", [["good", "bad"], ("good", "bad"), b"good", None, 7])
def test_anything_but_one_text_is_refused_with_the_next_move(text: object) -> None:
    """A list of texts was an AttributeError from the depths."""
    said = (
        "of 2; give a str. A call takes .*a list of texts" if isinstance(text, list | tuple) else "give a str"
    )
    with pytest.raises(InputError, match=said):
        require_content(text, "the text")


def test_padding_and_truncation_of_the_file_are_switched_off(tmp_path: Path) -> None:
    """all-MiniLM-L6-v2's own file pads to 128 and cuts there."""
    path = write_tokenizer(tmp_path) / "tokenizer.json"
    inner = tokenizers.Tokenizer.from_file(str(path))
    inner.enable_padding(length=20)
    inner.enable_truncation(6)
    inner.save(str(path))
    assert open_tokenizer(tmp_path, tiny_spec()).encode("good " * 9).n_tokens == 11


def test_a_model_with_one_type_gets_zeros(tmp_path: Path) -> None:
    """Type 1 would read past a table of one row."""
    tokenizer = open_tokenizer(write_tokenizer(tmp_path), tiny_spec(n_types=1))
    assert tokenizer.encode("good", "bad").types.tolist() == [0] * 5


def test_an_id_without_an_embedding_is_named(tmp_path: Path) -> None:
    """A tokenizer of another model would read past the table."""
    path = write_tokenizer(tmp_path) / "tokenizer.json"
    inner = tokenizers.Tokenizer.from_file(str(path))
    inner.add_tokens([f"extra{i}" for i in range(VOCAB)])
    inner.save(str(path))
    with pytest.raises(ModelError, match=r"'extra63'.*64 embeddings"):
        open_tokenizer(tmp_path, tiny_spec()).encode("good extra63")


def test_a_padding_token_in_a_roberta_text_is_refused(tmp_path: Path) -> None:
    """RoBERTa numbers positions around padding; pliant has none, so the text would be misread."""
    spec = tiny_spec("roberta")
    with pytest.raises(InputError, match="padding token"):
        open_tokenizer(write_tokenizer(tmp_path, "roberta"), spec).encode("good <pad> film")


def test_text_that_is_no_unicode_is_refused(bert: Tokenizer) -> None:
    """Command lines carry undecodable bytes as lone surrogates."""
    with pytest.raises(InputError, match="Unicode"):
        bert.encode("good \udcff film")


def test_text_without_any_token_is_refused(minilm: Path, tmp_path: Path) -> None:
    """Control characters are not blank, but the tokenizer drops them."""
    tokenizer = open_tokenizer(minilm, tiny_spec(vocab=30522))
    with pytest.raises(InputError, match="no token"):
        tokenizer.encode("\x00\x01")


@pytest.mark.parametrize("text", ["", "{}", '{"version": "9.0"}', "\xff\xfe"])
def test_a_damaged_tokenizer_is_named(tmp_path: Path, text: str) -> None:
    """tokenizers raises a bare Exception for these."""
    (tmp_path / "tokenizer.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ModelError, match=r"tokenizer\.json cannot be read"):
        open_tokenizer(tmp_path, tiny_spec())


def test_a_newer_tokenizer_is_named(tmp_path: Path) -> None:
    """A model of tomorrow may use a kind of tokenizer this library does not know."""
    path = write_tokenizer(tmp_path) / "tokenizer.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    content["model"]["type"] = "Tomorrow"
    path.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(ModelError, match=r"tokenizer\.json cannot be read"):
        open_tokenizer(tmp_path, tiny_spec())


def test_a_missing_tokenizer_says_how_to_make_one(tiny_model: Callable[..., Path], tmp_path: Path) -> None:
    """Older directories hold only vocab.txt."""
    with pytest.raises(ModelError, match="save_pretrained"):
        open_tokenizer(tmp_path, tiny_spec())
