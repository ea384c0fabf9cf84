"""Files as Linux writes them for a process in a control group, below a folder of the test."""

from pathlib import Path

_LINE = "31 25 0:27 {root} {mount} rw,nosuid - {kind} cgroup rw,{options}\n"


def proc_in(folder: Path, version: int, own: str, root: str = "/", controller: str = "memory") -> Path:
    """A /proc/self of a process in the group `own`; its hierarchy is visible from `root` on, at `cgroup`."""
    proc = folder / "proc"
    proc.mkdir(parents=True)
    mount = folder / "cgroup"
    kind, options = ("cgroup", controller) if version == 1 else ("cgroup2", "nsdelegate")
    other = _LINE.format(root="/", mount="/sys/fs/cgroup/pids", kind="cgroup", options="pids")
    disk = "22 1 254:0 / / rw,noatime shared:1 - ext4 /dev/root rw\n"
    (proc / "mountinfo").write_text(
        disk + other + _LINE.format(root=root, mount=mount, kind=kind, options=options)
    )
    (proc / "cgroup").write_text(f"5:pids:/\n{f'4:{controller}' if version == 1 else '0:'}:{own}\n")
    return proc


def write_group(group: Path, **files: object) -> None:
    """Files of a group; `__` stands for the dot in their names."""
    group.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (group / name.replace("__", ".")).write_text(f"{text}\n")
