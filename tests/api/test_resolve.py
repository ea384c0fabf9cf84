"""A source names one model of one kind, wherever it comes from, or an error says what to do."""

import os
import string
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from onnx.parser import parse_model
from typer.testing import CliRunner

from pliant.api.model import (
    VERBS,
    CheckpointModel,
    CompiledProgram,
    EncoderModel,
    Model,
    OnnxGraph,
    RandomWeights,
    RecurrentNetwork,
    StoreModel,
)
from pliant.api.model_name import model_name
from pliant.api.resolve import resolve, shipped_models
from pliant.cli.app import app
from pliant.errors import InputError, ModelError, PliantError
from pliant.models.hf.checkpoint import open_checkpoint
from pliant.models.recurrent.recurrent_spec import RecurrentSpec
from pliant.store.build import build
from tests.guards.test_options import verbs
from tests.recurrent_models import write_recurrent
from tests.tiny import tiny_spec, write_model

RELU = parse_model('<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) { y = Relu(x) }')


def never(name: str) -> Path:
    raise AssertionError(f"{name} must not be downloaded")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of each kind that has files: `text`, `store`, `lstm`, `vit`, `relu.onnx`, `compiled`."""
    made = tmp_path_factory.mktemp("models")
    write_model(made / "text", tiny_spec(widths=(2, 4), depths=(1, 2)))
    build(open_checkpoint(made / "text"), made / "store")
    write_recurrent(made / "lstm", RecurrentSpec("lstm", 10, 6, 8, labels=("bad", "good")))
    (made / "vit").mkdir()
    (made / "vit" / "config.json").write_text('{"model_type": "vit"}')
    onnx.save(RELU, made / "relu.onnx")
    words = ["compile", str(made / "relu.onnx"), "-o", str(made / "compiled"), "--threads", "1"]
    assert CliRunner().invoke(app, words, env={"PLIANT_CACHE": str(made / "cache")}).exit_code == 0
    return made


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("text", CheckpointModel),
        ("store", StoreModel),
        ("lstm", RecurrentNetwork),
        ("vit", EncoderModel),
        ("relu.onnx", OnnxGraph),
        ("compiled", CompiledProgram),
    ],
)
def test_a_file_or_folder_is_the_model_that_it_holds(folder: Path, name: str, kind: type[Model]) -> None:
    """As a path or as text, with a slash behind it, and through a link."""
    path = folder / name
    link = folder / f"link to {name}"
    link.symlink_to(path)
    for source in (path, str(path), link):
        model = resolve(source, never)
        assert type(model) is kind
        assert model.path == Path(source)
    if path.is_dir():
        assert type(resolve(f"{path}/", never)) is kind
    link.unlink()


def test_a_model_says_what_it_is_without_being_opened(folder: Path) -> None:
    """Labels, trained depths and widths, and an identity that a copy shares and other weights do not."""
    text, store, lstm = (resolve(folder / name) for name in ("text", "store", "lstm"))
    for model in (text, store):
        assert model.labels == ("negative", "positive")
        assert (model.depths, model.widths) == ((1, 2), (2, 4))
    assert lstm.labels == ("bad", "good")
    copied = folder / "copy of text"
    copied.mkdir()
    for file in (folder / "text").iterdir():
        (copied / file.name).write_bytes(file.read_bytes())
    assert resolve(copied).identity == text.identity
    identities = [resolve(folder / n).identity for n in ("text", "store", "lstm", "relu.onnx")]
    identities += [resolve(s).identity for s in ("random:gru-300", "random:gru-300:1", "random:bert-base")]
    assert len(set(identities)) == len(identities)
    assert resolve(folder / "compiled").identity == resolve(folder / "relu.onnx").identity


def test_a_model_in_memory_is_onnx() -> None:
    """Bytes and ModelProto, as `pliant.compile` takes them; other values are refused by their type."""
    for source in (RELU, RELU.SerializeToString()):
        model = resolve(source)
        assert isinstance(model, OnnxGraph)
        assert (model.name, model.path, model.content) == ("model", None, source)
    assert resolve(RELU).identity == resolve(RELU.SerializeToString()).identity
    with pytest.raises(InputError, match="not int"):
        resolve(3)


@pytest.mark.parametrize(
    ("source", "kind", "weights"),
    [
        ("random:cove-200", RecurrentNetwork, RandomWeights("cove-200", 0)),
        ("random:gru-300:7", RecurrentNetwork, RandomWeights("gru-300", 7)),
        ("random:bert-base", EncoderModel, RandomWeights("bert-base", 0)),
        ("random:mobilebert:7", EncoderModel, RandomWeights("mobilebert", 7)),
    ],
)
def test_a_configuration_with_random_weights_is_of_its_own_kind(
    source: str, kind: type[Model], weights: RandomWeights
) -> None:
    """`pliant run random:bert-base` said that bert-base is no recurrent configuration."""
    model = resolve(source, never)
    assert type(model) is kind
    assert model.weights == weights


def test_a_configuration_file_says_by_itself_what_kind_it_is(folder: Path) -> None:
    """A file's name may hold a colon; only digits behind the last one are a seed."""
    config = folder / "lstm" / "config.json"
    assert resolve(f"random:{config}:3") == RecurrentNetwork("config.json-3", RandomWeights(str(config), 3))
    assert isinstance(resolve(f"random:{folder / 'vit' / 'config.json'}"), EncoderModel)
    odd = folder / "a:b.json"
    odd.write_bytes(config.read_bytes())
    assert resolve(f"random:{odd}").weights == RandomWeights(str(odd), 0)


@pytest.mark.parametrize(
    "source",
    ["random:", "random:nothing", "random:nothing:3", "random:/no/such.json", f"random:gru-300:{'9' * 30}"],
)
def test_an_unknown_configuration_is_refused_with_those_of_every_kind(source: str) -> None:
    """A mistyped name is the usual cause."""
    with pytest.raises(ModelError, match=r"not a configuration file.*cove-200.*bert-base"):
        resolve(source)


def test_shipped_models_are_found_by_name() -> None:
    """`sst2` and `imdb-lstm` need no path."""
    kinds = {name: type(resolve(name, never)) for name in shipped_models()}
    assert kinds == {"imdb-lstm": RecurrentNetwork, "sst2": CheckpointModel}


def test_a_local_model_hides_the_shipped_one_of_its_name(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of every kind; a folder of that name without a model in it, or a broken link, hides nothing."""
    monkeypatch.chdir(tmp_path)
    for name in ("store", "lstm", "compiled"):
        link = tmp_path / "sst2"
        link.symlink_to(folder / name)
        assert resolve("sst2") == type(resolve(folder / name))("sst2", Path("sst2"))
        link.unlink()
    (tmp_path / "sst2").mkdir()
    assert isinstance(resolve("sst2", never), CheckpointModel)
    (tmp_path / "imdb-lstm").symlink_to(tmp_path / "gone")
    assert isinstance(resolve("imdb-lstm", never), RecurrentNetwork)


def test_a_local_directory_comes_before_a_hub_id(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`owner/name` may be both; the one in sight is meant."""
    (tmp_path / "owner").mkdir()
    (tmp_path / "owner" / "name").symlink_to(folder / "text")
    monkeypatch.chdir(tmp_path)
    assert resolve("owner/name", never).path == Path("owner/name")


@pytest.mark.parametrize("name", ["some-bert", "sentence-transformers/all-MiniLM-L6-v2"])
def test_a_hub_id_is_downloaded_and_keeps_its_name(folder: Path, name: str) -> None:
    """Its directory in the hub's cache is called by a hash; what it holds decides its kind."""
    asked: list[str] = []
    for kind in ("text", "lstm", "vit"):
        model = resolve(name, lambda one, kind=kind: asked.append(one) or folder / kind)
        assert type(model) is type(resolve(folder / kind))
        assert (model.path, model.name) == (folder / kind, name.rpartition("/")[2])
    assert set(asked) == {name}


@pytest.mark.parametrize(
    "source", ["", "./missing", "/no/such/place", "a/b/c", "~nobody-of-that-name/x", "a b", "\0", "x" * 5000]
)
def test_what_can_only_be_a_path_is_not_asked_of_the_hub(source: str) -> None:
    """A typing mistake in a path must not become a download, nor a traceback."""
    with pytest.raises(ModelError, match=r"no directory .*sst2|cannot be read: File name too long"):
        resolve(source, never)


def test_a_mistyped_name_is_answered_with_those_that_ship() -> None:
    """`sst-2` is asked of the hub, which says nothing of them."""

    def no_download(name: str) -> Path:
        raise ModelError(f"the hub has no {name}.")

    with pytest.raises(ModelError, match=r"the hub has no sst-2\. Models that ship .* imdb-lstm, sst2\."):
        resolve("sst-2", no_download)
    with pytest.raises(ModelError, match=r"the hub has no owner/name\.$"):
        resolve("owner/name", no_download)


def test_a_file_that_is_no_model_leads_to_the_directory(folder: Path) -> None:
    """People name the weights, or the configuration, instead of the directory."""
    for name in ("model.safetensors", "config.json"):
        with pytest.raises(ModelError, match="name the directory"):
            resolve(folder / "text" / name, never)
    with pytest.raises(ModelError, match=r"there is no file 'gone\.onnx'"):
        resolve("gone.onnx", never)


def test_an_onnx_file_may_have_any_name(folder: Path, tmp_path: Path) -> None:
    """`bench model.pb` always worked; the file's first field tells it from weights."""
    (tmp_path / "relu.pb").write_bytes((folder / "relu.onnx").read_bytes())
    assert isinstance(resolve(tmp_path / "relu.pb"), OnnxGraph)
    (tmp_path / "w.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{      }")
    with pytest.raises(ModelError, match="not an ONNX model"):
        resolve(tmp_path / "w.safetensors")


def test_a_directory_with_one_onnx_file_is_that_model(folder: Path, tmp_path: Path) -> None:
    """A model server mounts a directory; exporters write the graph beside config.json and tokenizer.json."""
    graph = tmp_path / "model.onnx"
    graph.write_bytes((folder / "relu.onnx").read_bytes())
    model = resolve(tmp_path, never)
    assert isinstance(model, OnnxGraph)
    assert (model.name, model.path) == (tmp_path.name, graph)
    assert model.identity == resolve(graph, never).identity
    (tmp_path / "config.json").write_bytes((folder / "text" / "config.json").read_bytes())
    assert resolve(tmp_path, never).path == graph
    (tmp_path / "model.safetensors").touch()
    assert isinstance(resolve(tmp_path, never), CheckpointModel)


def test_a_directory_of_several_onnx_files_is_refused(folder: Path, tmp_path: Path) -> None:
    """Either could be meant; a link that leads nowhere is named."""
    (tmp_path / "encoder.onnx").symlink_to("nowhere")
    with pytest.raises(ModelError, match=r"encoder\.onnx is a link to nowhere"):
        resolve(tmp_path, never)
    (tmp_path / "decoder.onnx").touch()
    with pytest.raises(ModelError, match=r"or a single file \*\.onnx"):
        resolve(tmp_path, never)


def test_a_directory_without_a_model_says_what_it_would_hold(folder: Path, tmp_path: Path) -> None:
    """The folder above, or the one that the training framework wrote."""
    with pytest.raises(ModelError, match=r"config\.json is missing.*manifest\.json \(a store\)"):
        resolve(tmp_path, never)
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(
        ModelError, match=r"model_type 'gpt2' is not supported; pliant runs bert.*whisper, recurrent"
    ):
        resolve(tmp_path, never)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError, match=r"config\.json cannot be used"):
        resolve(tmp_path, never)


def test_a_directory_of_two_kinds_is_refused(folder: Path, tmp_path: Path) -> None:
    """Verbs answered with one or the other, each in its own order, and said nothing."""
    files = {
        "manifest.json": folder / "store",
        "program.json": folder / "compiled",
        "config.json": folder / "text",
    }
    for first in files:
        for second in set(files) - {first}:
            both = tmp_path / f"{first} {second}"
            both.mkdir()
            for name in (first, second):
                (both / name).write_bytes((files[name] / name).read_bytes())
            with pytest.raises(ModelError, match="at once: move the files of one") as error:
                resolve(both, never)
            assert first in str(error.value)
            assert second in str(error.value)


def test_a_broken_link_is_named_with_where_it_leads(tmp_path: Path) -> None:
    """The hub's cache consists of links; a cache that was emptied by hand leaves them behind."""
    (tmp_path / "gone").symlink_to("nowhere")
    (tmp_path / "m.onnx").symlink_to("nowhere")
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "config.json").symlink_to("../blobs/1f")
    (tmp_path / "loop").symlink_to("loop")
    for name, said in (
        ("gone", "a link to nowhere, which does not exist"),
        ("m.onnx", "a link to nowhere, which does not exist"),
        ("half", r"config\.json is a link to \.\./blobs/1f"),
        ("loop", "cannot be read: Too many levels of symbolic links"),
    ):
        with pytest.raises(ModelError, match=said):
            resolve(tmp_path / name, never)


@contextmanager
def unprivileged() -> Iterator[None]:
    """As a user whom permissions bind: root reads everything."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_files_without_permission_are_named() -> None:
    """pathlib raises PermissionError for a folder that may not be searched: that was a traceback."""
    with TemporaryDirectory() as made:  # pytest's own folders are closed to other users
        folder = Path(made)
        folder.chmod(0o755)
        closed, within, file = folder / "closed", folder / "closed" / "within", folder / "file.bin"
        within.mkdir(parents=True)
        file.write_bytes(b"\x08")
        closed.chmod(0)
        file.chmod(0)
        try:
            with unprivileged():
                for path in (closed, within, file):
                    with pytest.raises(ModelError, match="cannot be read: Permission denied"):
                        resolve(path, never)
        finally:
            closed.chmod(0o755)


@settings(max_examples=200)
@given(st.text(alphabet=string.ascii_letters + "./:-_~ \0\n*é", max_size=30))
@example("~\0")
@example("~\ud800")
def test_any_text_names_a_model_or_is_refused_with_an_error_of_ours(text: str) -> None:
    """Whatever somebody types, there is no traceback; a name is never empty and fits into a URL."""
    try:
        model = resolve(text, lambda name: resolve("sst2").path)
    except PliantError:
        return
    assert type(model) in VERBS
    assert model.name.strip("._-")


def test_names_are_those_of_files_and_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What stands in a node's URLs. `.` had an empty one."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    named = {".": "here", "a/b/": "b", "a b.onnx": "a-b", "owner/x.y": "x.y", "random:gru:3": "random-gru-3"}
    assert {source: model_name(source) for source in named} == named


def test_every_verb_of_the_table_exists() -> None:
    """An error that sends somebody to a verb which is not there helps nobody."""
    known = {name for name, _ in verbs()} | {"node --cluster"}
    assert {verb for taken in VERBS.values() for verb in taken} <= known


WORDS: dict[str, tuple[str, ...]] = {
    "run": ("MODEL", "--latency", "1s", "--text", "a"),
    "plan": ("MODEL", "--latency", "1s"),
    "profile": ("MODEL",),
    "eval": ("MODEL", "nowhere.tsv", "--latency", "1s"),
    "pack": ("MODEL",),
    "stretch": ("MODEL", "--train", "t", "--dev", "d", "-o", "o"),
    "bench": ("MODEL",),
    "node": ("MODEL", "--listen", "127.0.0.1:0"),
    "demo": ("MODEL",),
    "worker": ("--join", "127.0.0.1:1", "--model", "MODEL"),
}


@pytest.mark.parametrize("verb", WORDS)
def test_a_verb_refuses_the_kinds_that_it_does_not_take_and_names_verbs_that_do(
    folder: Path, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table and the verbs agree; each of its errors is one line with the next move."""
    monkeypatch.chdir(folder)
    for name in ("text", "store", "lstm", "vit", "relu.onnx", "compiled"):
        taken = VERBS[type(resolve(folder / name))]
        if verb in taken:
            continue
        words = [word.replace("MODEL", name) for word in WORDS[verb]]
        result = CliRunner().invoke(app, [verb, *words], env={"PLIANT_CACHE": str(folder / "cache")})
        assert result.exit_code == 1, (name, result.output)
        assert "does not take; use " in result.stderr
        assert all(f"pliant {one}" in result.stderr for one in taken)


def test_inspect_takes_every_kind(folder: Path) -> None:
    """What somebody was given is the first question."""
    for name in ("store", "lstm", "relu.onnx", "compiled", "random:bert-base"):
        source = name if name.startswith("random:") else str(folder / name)
        result = CliRunner().invoke(app, ["inspect", source, "--json"])
        assert result.exit_code == 0, result.output
    page = CliRunner().invoke(app, ["inspect", "random:vit-base"]).stdout
    assert "labels: LABEL_0, LABEL_1, " in page
    assert page.rstrip().endswith("LABEL_9, ... (1000)")


def test_the_page_of_sources_has_the_table_of_verbs() -> None:
    """Somebody who reads it must not try in vain."""
    lines = (Path(__file__).parents[2] / "docs" / "sources.md").read_text(encoding="utf-8").splitlines()
    for kind, taken in VERBS.items():
        (row,) = [line for line in lines if line.startswith(f"| {kind.kind}") and "`inspect`" in line]
        assert row.split(" | ")[1].rstrip(" |") == ", ".join(f"`{verb}`" for verb in taken)
