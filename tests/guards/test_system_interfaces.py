"""Guard: interfaces of one operating system are used in `pliant.system` alone.

Protects that another system is a module beside `pliant/system/linux`, and nothing else. Python's own portable
interfaces (`os.open`, `os.fsync`, `signal`, `psutil`) may be used anywhere. C code that pliant prints is for
the system of its target, and has its own part for it (`files.c` and `runtime.c` in `compiler/aot/c`).
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOM = Path(__file__).parents[2] / "src" / "pliant"
_MODULES = {"fcntl", "mmap", "resource", "select", "termios", "pwd", "grp"}
_OS = re.compile(r"sched_|posix_|p(read|write)|memfd|eventfd|O_DIRECT|O_TMPFILE|nice$|[gs]etpriority|sysconf")
_SOCKET = re.compile(r"TCP_(?!NODELAY)|SO_(?!REUSEADDR|LINGER)|AF_(NETLINK|PACKET|VSOCK)")
_TEXT = re.compile(r"^/(proc|sys|dev)\b|\bsyscall\b|\bsched_getcpu\b|\bclock_gettime\b")
"""Files of a kernel, and what generated code calls of one."""
_LOADERS = {"CDLL", "PyDLL", "pythonapi"}


def interfaces(source: str) -> Iterator[str]:
    """The uses of interfaces of one system in a module, and of the modules of one system."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                yield from (one.name for one in names if one.name in _MODULES)
                yield from (one.name for one in names if one.name.startswith("pliant.system."))
            case ast.ImportFrom(module=str(module)):
                if module in _MODULES or module.startswith("pliant.system."):
                    yield module
            case ast.Attribute(value=ast.Name(id="os"), attr=name) if _OS.match(name):
                yield f"os.{name}"
            case ast.Attribute(value=ast.Name(id="socket"), attr=name) if _SOCKET.match(name):
                yield f"socket.{name}"
            case ast.Attribute(value=ast.Name(id="ctypes"), attr=name) if name in _LOADERS:
                yield f"ctypes.{name}"
            case ast.Attribute(value=ast.Name(id="sys"), attr="platform"):
                yield "sys.platform"
            case ast.Constant(value=str(text)) if _TEXT.search(text):
                yield text


def test_interfaces_of_a_system_are_used_in_one_folder() -> None:
    """What is found belongs into `pliant/system/linux`, behind a function of `pliant.system`."""
    own = ROOM / "system"
    paths = [path for path in sorted(ROOM.rglob("*.py")) if not path.is_relative_to(own)]
    found = {
        str(path.relative_to(ROOM)): list(interfaces(path.read_text(encoding="utf-8"))) for path in paths
    }
    assert not {path: names for path, names in found.items() if names}


def test_interfaces_of_a_system_are_found() -> None:
    """A pattern that finds nothing would let everything pass."""
    source = (
        "import mmap, os, resource\n"
        "from fcntl import flock\n"
        "from pliant.system.linux.files import lock\n"
        "from pliant.system import lock, trim_heap\n"
        "os.sched_getaffinity(0), os.preadv(fd, [], 0), os.O_DIRECT, os.open(path, os.O_RDONLY)\n"
        "ctypes.CDLL(None), ctypes.sizeof(x), sys.platform, sys.argv\n"
        "sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1), socket.TCP_INFO\n"
        "Path('/proc/self/statm'), Path('/processes'), 'below /proc', 'call @syscall(i64 202)'\n"
    )
    assert set(interfaces(source)) == {
        *("mmap", "resource", "fcntl", "pliant.system.linux.files", "os.sched_getaffinity", "os.preadv"),
        *("os.O_DIRECT", "ctypes.CDLL", "sys.platform", "socket.TCP_INFO", "/proc/self/statm"),
        "call @syscall(i64 202)",
    }
