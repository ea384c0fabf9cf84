"""Answers of the README's examples, written by one machine and compared with another's, for `scripts/arm`.

    arm_answers.py --packages       what an emulated Python needs, as `name==version` of this environment
    arm_answers.py FOLDER here      write FOLDER/here.npz, and models that others read
    arm_answers.py FOLDER arm       write FOLDER/arm.npz
    arm_answers.py FOLDER compare   print how far each is apart; ends with status 1 where one is too far

Devices are described on paper, as measuring one takes minutes under emulation: plans, and so bits, are equal.
"""

import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.metadata import distribution
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from pliant.ir.device import DeviceProfile

TEXTS = (
    "a charming and often affecting journey",
    "unflinchingly bleak and desperate",
    "the plot is thin , but the cast is a delight to watch",
    "a tedious , overlong mess that never finds its tone",
    "A wonderful film, moving from the first scene to the last.",
)
TOLERANCE = 1e-5
"""Of a text's logits, relative to the largest of a model: sums in another order differ by about 1e-6."""
ROUNDED = 2e-2
"""Of one text in int8, of which the median keeps to TOLERANCE: a sum in another order may take an activation
to the next whole number. int8 itself is 3e-2 away from float32."""
_EXTRAS = ("cluster", "node")
_TESTING = ("pytest", "hypothesis", "jaxtyping", "beartype", "pytest-xdist")


def packages() -> list[str]:
    """What pliant, its cluster and the tests need, with the versions that are installed here."""
    from packaging.requirements import Requirement

    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = project["dependencies"] + [
        x for extra in _EXTRAS for x in project["optional-dependencies"][extra]
    ]
    todo, found = [Requirement(x) for x in (*wanted, *_TESTING)], {}
    while todo:
        one = todo.pop()
        if one.name in found or (one.marker and not one.marker.evaluate({"extra": ""})):
            continue
        known = distribution(one.name)
        found[one.name] = known.version
        todo += [Requirement(x) for x in known.requires or ()]
    return sorted(f"{name}=={version}" for name, version in found.items())


def answers(folder: Path) -> Iterator[tuple[str, np.ndarray]]:
    """By name, the logits of each example."""
    import pliant
    from pliant import system

    profile = on_paper()
    with pliant.open("sst2", profile=profile, adapt=False, threads=2) as model:
        yield "sst2", np.stack([model(text).logits for text in TEXTS])
    for compute in ("fp32", "int8"):
        within = {"latency": "1s", "preload": "6MB", "threads": 2, "compute": compute}
        with pliant.open("sst2", profile=profile, adapt=False, **within) as model:
            yield f"sst2 within 6 MB in {compute}", np.stack([model(text).logits for text in TEXTS])
    with pliant.open("imdb-lstm", threads=2) as model:
        yield "imdb-lstm", np.stack([model(text).logits for text in TEXTS])
    for weights in ("fp32", 4):
        session = pliant.compile(str(folder / "minilm.onnx"), threads=2, weights=weights)
        with session:
            yield f"ONNX MiniLM, weights {weights}", session.run(feeds())["y"]
    with pliant.load(folder / system.machine(), threads=2) as session:
        yield "ONNX MiniLM, compiled", session.run(feeds())["y"]
    yield "sst2 on two members", on_two_members()


def feeds() -> dict[str, np.ndarray]:
    """Two texts of 24 tokens, the second padded."""
    ids = np.random.default_rng(0).integers(1000, 2000, (2, 24))
    mask = np.ones_like(ids)
    mask[1, 15:] = 0
    return {"ids": ids, "mask": mask}


def on_two_members() -> np.ndarray:
    """The logits of a cluster of this process and a worker in it, over sockets on loopback."""
    import pliant
    from pliant.api.open_encoder import open_encoder
    from pliant.cluster.control.timeouts import ClusterTimeouts
    from pliant.cluster.lead.open_member import MemberOptions, open_worker
    from pliant.cluster.net.key import new_key
    from pliant.settings import cache_folder

    key, patience = new_key(), ClusterTimeouts(silence_s=120.0, least_s=120.0, report_s=20.0)
    with ExitStack() as ends:
        cluster = pliant.Cluster("127.0.0.1:0", key=key, threads=1, shares="equal", patience=patience)
        ends.enter_context(cluster)
        options = MemberOptions("worker", key, pliant.__version__, cache_folder(), 1, patience=patience)
        address = cluster.address.removeprefix("tcp://")
        ends.enter_context(open_worker(options, [address], [open_encoder("sst2", cache_folder())]))
        cluster.wait(1, 240.0)
        session = ends.enter_context(cluster.open("sst2"))
        return np.stack([session(text).logits for text in TEXTS])


def on_paper(disk_Bps: float = 1e4) -> "DeviceProfile":
    """A device with times of no machine, so that plans are equal; it reads nothing from so slow a disk."""
    from pliant.ir.device import DeviceProfile, LayerTime, Overhead
    from pliant.ir.link import Link
    from pliant.ir.times.timing import Timing

    lengths, widths, short, disk = (16, 256), range(1, 13), Timing(1e-3, 2e-3), Link(1e-4, disk_Bps)
    return DeviceProfile(
        cpu="on paper",
        n_threads=2,
        memory_bytes=1 << 30,
        frequency_Hz=None,
        frequency_reason="on paper",
        subject="sst2",
        io_method="none",
        reads=(),
        disk=disk,
        disk_p95=disk,
        layers=tuple(LayerTime(n, m, short, short) for n, m in product(lengths, widths)),
        overheads=tuple(Overhead(n, short, short, short) for n in lengths),
    )


def keep_profile() -> None:
    """Have `pliant run sst2` find a profile of this device, as measuring it takes minutes under emulation."""
    from pliant.api.open_elastic import open_packed_store
    from pliant.api.resolve import resolve_elastic
    from pliant.profile.measure_device import profile_key
    from pliant.profile.profile_cache import profile_path, save_profile
    from pliant.settings import cache_folder, thread_count
    from pliant.system import frequency_limit

    with open_packed_store(resolve_elastic("sst2", "run"), cache_folder(), lambda *_: None) as store:
        about = profile_key(store, thread_count())
        save_profile(profile_path(cache_folder(), *about, frequency_limit()), on_paper(1e9))


def share(folder: Path) -> None:
    """Write what every machine reads: the shipped MiniLM as ONNX, and compiled here for either machine."""
    from bench.text_models import export_classifier

    model = export_classifier(Path("src/pliant/models/assets/sst2"), folder / "minilm.onnx")
    sizes = [
        f"--dim={name}={size}" for name, size in zip(("batch", "tokens"), feeds()["ids"].shape, strict=True)
    ]
    for name, target in (("x86_64", "native"), ("aarch64", "aarch64-dot")):
        command = [sys.executable, "-m", "pliant", "compile", str(model), *sizes, "--target", target]
        subprocess.run([*command, "-o", str(folder / name), "--json"], check=True, stdout=subprocess.DEVNULL)


def compare(folder: Path) -> int:
    """How far answers are apart, text by text; 1 where one is too far, else 0."""
    here, there = (np.load(folder / f"{name}.npz") for name in ("here", "arm"))
    n_wrong = 0
    for name in here.files:
        rows, others = (x[name].reshape(len(x[name]), -1) for x in (here, there))
        apart = np.abs(rows - others).max(axis=1) / np.abs(rows).max()
        median, worst = float(np.median(apart)), float(apart.max())
        is_near = median <= TOLERANCE and worst <= (ROUNDED if name.endswith("int8") else TOLERANCE)
        n_wrong += not is_near
        print(f"{name:28} median {median:.1e}, worst {worst:.1e}{'' if is_near else ': TOO FAR'}")
    return int(n_wrong > 0)


def main() -> int:
    """Do what the arguments say."""
    if sys.argv[1] == "--packages":
        print(*packages(), sep="\n")
        return 0
    folder, name = Path(sys.argv[1]), sys.argv[2]
    if name == "compare":
        return compare(folder)
    if name == "here":
        share(folder)
    keep_profile()
    np.savez(folder / f"{name}.npz", **dict(answers(folder)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
