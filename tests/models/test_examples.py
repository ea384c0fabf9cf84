"""Labelled files are read to the letter, and what cannot be read is named by line."""

import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.errors import InputError
from pliant.models.examples import Example, label_names, read_examples

MRPC = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"


def write(directory: Path, content: str | bytes) -> Path:
    path = directory / "examples.tsv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
    return path


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("sentence\tlabel\nit 's good . \t1\n", Example("it 's good . ", None, 1)),
        ("index\tsentence1\tsentence2\tlabel\n0\ta\tb\tno\n", Example("a", "b", 0)),
        ("index\tquestion\tsentence\tlabel\n7\twhat?\tthat.\tYES\n", Example("what?", "that.", 1)),
        (MRPC + '1\t11\t12\tHe said "no.\t"Yes", he\n', Example('He said "no.', '"Yes", he', 1)),
        ("\ufeff" + MRPC + "0\t11\t12\ta\tb\r\n", Example("a", "b", 0)),
        ("label\ttext\n1\ta\u2028b\x0bc\n\n", Example("a\u2028b\x0bc", None, 1)),
    ],
)
def test_every_layout_is_read(tmp_path: Path, content: str, expected: Example) -> None:
    """SST-2, RTE, QNLI and MRPC each have their own columns; MRPC's quotes are text."""
    assert read_examples(write(tmp_path, content), ("no", "yes")) == (expected,)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty"),
        ("\n\n", "is empty"),
        ("sentence\tlabel\n", "no rows"),
        ("words\tclass\na\t1\n", r"line 1: no known columns in the header \['words', 'class'\]"),
        ("sentence\tlabel\na\t1\nb\n", "line 3: 1 columns, but the header names 2"),
        ("sentence\tlabel\na\tb\t1\n", "line 2: 3 columns"),
        ("sentence\tlabel\na\t1\n\nb\t0\n", "line 3: the line is empty"),
        ("sentence\tlabel\na\t1\n \t0\n", "line 3: the text is empty"),
        ("sentence\tlabel\na\t2\n", r"line 2: label '2' is none of the model's 2 labels \(no, yes\)"),
        ("sentence\tlabel\na\tmaybe\n", "line 2: label 'maybe'"),
        ("sentence\tlabel\na\t-1\n", "line 2: label '-1'"),
        ("sentence\tlabel\na\t²\n", "line 2: label '²'"),
        ("sentence\tlabel\na\t\n", "line 2: label ''"),
        (b"sentence\tlabel\ncaf\xe9\t1\n", "line 2: byte 4 is not UTF-8"),
        (b"\xff\n", "line 1: byte 1 is not UTF-8"),
    ],
)
def test_a_bad_row_is_named_by_file_and_line(tmp_path: Path, content: str | bytes, message: str) -> None:
    """In a file of 60,000 rows nobody finds it otherwise."""
    with pytest.raises(InputError, match=rf"(?s)examples\.tsv.*{message}"):
        read_examples(write(tmp_path, content), ("no", "yes"))


def test_a_model_without_labels_cannot_read_labels(tmp_path: Path) -> None:
    """An embedding model was given to eval."""
    with pytest.raises(InputError, match="classifier"):
        read_examples(write(tmp_path, "sentence\tlabel\na\t1\n"), ())


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """The commonest mistake."""
    with pytest.raises(InputError, match=r"nothing\.tsv cannot be read"):
        read_examples(tmp_path / "nothing.tsv", ("a", "b"))


def test_gzipped_files_are_read_and_damaged_ones_named(tmp_path: Path) -> None:
    """IMDB comes compressed."""
    path = tmp_path / "x.tsv.gz"
    content = gzip.compress(b"sentence\tlabel\n" + b"a\t1\n" * 5)
    path.write_bytes(content)
    assert len(read_examples(path, ("no", "yes"))) == 5
    path.write_bytes(content[:-12])
    with pytest.raises(InputError, match="cannot be read"):
        read_examples(path, ("no", "yes"))
    path.write_bytes(b"not gzip")
    with pytest.raises(InputError, match="cannot be read"):
        read_examples(path, ("no", "yes"))


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        (["not_entailment", "entailment"], ("entailment", "not_entailment")),
        (["10", "9", "2"], ("2", "9", "10")),
        (["b", "1"], ("1", "b")),
    ],
)
def test_label_names_come_in_the_order_of_glue(
    tmp_path: Path, labels: list[str], names: tuple[str, ...]
) -> None:
    """A new classifier's rows follow this order, so it must not depend on the order of rows."""
    path = write(tmp_path, "sentence\tlabel\n" + "".join(f"a\t{label}\n" for label in labels))
    assert label_names(path) == names
    assert [e.label for e in read_examples(path, names)] == [names.index(label) for label in labels]


def test_one_label_is_nothing_to_learn(tmp_path: Path) -> None:
    """A classifier of one class answers it always."""
    with pytest.raises(InputError, match="1 distinct labels"):
        label_names(write(tmp_path, "sentence\tlabel\na\t1\nb\t1\n"))


text = st.text(st.characters(exclude_characters="\t\n\r", exclude_categories=["Cs"]), min_size=1).filter(
    str.strip
)


@given(rows=st.lists(st.tuples(text, text, st.integers(0, 2)), min_size=1, max_size=8))
def test_any_text_without_tabs_and_line_ends_survives(
    rows: list[tuple[str, str, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Quotes, backslashes, separators of other alphabets: nothing is interpreted."""
    body = "".join(f"{i}\t{a}\t{b}\t{label}\n" for i, (a, b, label) in enumerate(rows))
    path = write(tmp_path_factory.mktemp("tsv"), "index\tsentence1\tsentence2\tlabel\n" + body)
    assert [(e.text, e.pair, e.label) for e in read_examples(path, ("a", "b", "c"))] == rows


@pytest.mark.parametrize(
    ("file", "n"),
    [
        ("sst2/dev.tsv", 872),
        ("rte/dev.tsv", 277),
        ("qnli/dev.tsv", 5463),
        ("mrpc/msr_paraphrase_test.txt", 1725),
    ],
)
def test_the_real_files_have_their_published_sizes(data: Path, file: str, n: int) -> None:
    """A quote taken for a bracket swallows rows, which shows in the count."""
    assert len(read_examples(data / file, label_names(data / file))) == n
