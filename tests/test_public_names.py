"""`import pliant` offers plain typed functions: to help, completion, inspect and type checkers."""

import inspect
import pydoc
import subprocess
import sys
from pathlib import Path

from mypy import api as mypy

import pliant
from pliant.api.compile_onnx import compile as compile_onnx
from pliant.api.open_session import open as open_session

PACKAGE = Path(pliant.__file__).parent
USER = """
import pliant
from pliant import compile, load, open

with open("sst2", latency="20ms", preload="200KB") as model:
    label: str | None = model("a fine film").label
    labels: list[str | None] = [reply.label for reply in model(["a fine film", "a bad one"], latency="9ms")]
outputs = compile("model.onnx", threads=2).run({"x": [1.0]})
reveal_type(open)
pliant.open("sst2", latncy="20ms")
load("m", threads="2")
"""


def test_names_are_the_functions_themselves() -> None:
    """A wrapper would show `(*args, **kwargs)` and no docstring."""
    assert pliant.open is open_session
    assert pliant.compile is compile_onnx
    assert "latency" in inspect.signature(pliant.open).parameters
    assert set(pliant.__all__) <= set(dir(pliant))
    assert not {"Any", "TYPE_CHECKING", "import_module", "find_spec"} & set(dir(pliant))


def test_help_lists_every_function_with_its_parameters() -> None:
    """`help(pliant)` is what a user types first; it reads names that are imported when they are asked for."""
    text = pydoc.render_doc(pliant, renderer=pydoc.plaintext)
    for name in ("compile", "load", "open"):
        assert f"    {name}({next(iter(inspect.signature(getattr(pliant, name)).parameters))}:" in text
    assert "Open a session that answers text" in pydoc.render_doc(pliant.open, renderer=pydoc.plaintext)


def test_help_and_star_import_need_no_extra() -> None:
    """Without pyzmq both stopped at `Cluster`; asking for that name still says what to install."""
    code = (
        "import sys; sys.modules['zmq'] = None\n"
        "import pliant, pydoc\n"
        "assert 'open(' in pydoc.render_doc(pliant, renderer=pydoc.plaintext)\n"
        "from pliant import *\n"
        "try: pliant.Cluster\n"
        "except pliant.errors.ClusterError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'pliant[cluster]'" in done.stdout


def test_a_type_checker_sees_the_real_signatures(tmp_path: Path) -> None:
    """A wrong keyword is found before anything runs. Only the modules that define the names are followed."""
    (tmp_path / "user.py").write_text(USER)
    names = ("__init__", "api/compile_onnx", "api/load_compiled", "api/open_session")
    files = [str(tmp_path / "user.py"), *(str(PACKAGE / f"{name}.py") for name in names)]
    words = ["--strict", "--follow-imports=skip", "--config-file=", f"--cache-dir={tmp_path / 'mypy'}"]
    found, _, _ = mypy.run([*words, *files])
    lines = [line.partition("user.py:")[2] for line in found.splitlines() if "user.py:" in line]
    said = {int(line.split(":")[0]): line for line in lines if "note: " not in line or "Revealed" in line}
    assert set(said) == {9, 10, 11}, found
    assert "latency: str | float | None" in said[9]
    assert 'Unexpected keyword argument "latncy" for "open"' in said[10]
    assert "threads" in said[11]


def test_errors_need_no_other_import() -> None:
    """`except pliant.PliantError` is what a user writes first; the tree is beside it."""
    assert issubclass(pliant.errors.BudgetError, pliant.PliantError)
