"""The helpers of a C library: threads in a program that knows nothing of them."""

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from pliant.compiler.aot.ahead_of_time import write_c
from pliant.compiler.executable.call import Target
from pliant.compiler.executable.image import make_image
from pliant.ir.graph import Graph, Node, TensorType
from pliant.kernels.emit.isa import host_isa

HANGS_AFTER_S = 60
_SIGNALS = """
#define _GNU_SOURCE
#include "small.h"
#include <signal.h>
#include <stdio.h>
#include <sys/signalfd.h>
#include <unistd.h>
int main(int argc, char **argv) {
    sigset_t term;
    struct small *model = small_open(argv[argc - 1], 4);
    sigemptyset(&term);
    sigaddset(&term, SIGTERM);
    sigprocmask(SIG_BLOCK, &term, NULL);
    int descriptor = signalfd(-1, &term, 0);
    struct signalfd_siginfo told;
    kill(getpid(), SIGTERM);
    if (!model || read(descriptor, &told, sizeof told) != sizeof told)
        return 1;
    puts("told");
    small_close(model);
    return 0;
}
"""
_UNKNOWN_CPU = """
#define _GNU_SOURCE
#include "small.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/syscall.h>
static pthread_t caller;
static atomic_int has_run, n_asked, n_moves;
int sched_getcpu(void) {
    if (has_run && !pthread_equal(pthread_self(), caller))
        n_asked++;
    return -1;
}
long syscall(long number, ...) {
    long (*real)(long, ...) = dlsym(RTLD_NEXT, "syscall"), words[6];
    va_list list;
    va_start(list, number);
    for (int i = 0; i < 6; i++)
        words[i] = va_arg(list, long);
    va_end(list);
    if (number == SYS_sched_getaffinity) {
        n_moves++;
        return -1;
    }
    return real(number, words[0], words[1], words[2], words[3], words[4], words[5]);
}
int main(int argc, char **argv) {
    static float x[512 * 512], y[512 * 512];
    const void *inputs[] = {x};
    void *outputs[] = {y};
    caller = pthread_self();
    struct small *model = small_open(argv[argc - 1], 2);
    for (int i = 0; model && n_asked < 10 && i < 1000000; i++) {
        small_run(model, inputs, outputs);
        has_run = 1;
    }
    small_close(model);
    printf("%d %d\\n", n_asked >= 10, n_moves);
    return 0;
}
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library `small` of a sum that two threads share."""
    if shutil.which("cc") is None:
        pytest.skip("no cc here")
    out = tmp_path_factory.mktemp("library") / "small"
    types = {x: TensorType("float32", (512, 512)) for x in ("x", "w", "y")}
    weights = {"w": np.ones((512, 512), np.float32)}
    graph = Graph((Node("Add", ("x", "w"), ("y",)),), ("x",), ("y",), types, weights)
    emitted = write_c(make_image(graph, Target(host_isa(), 2)), "small", out)
    assert emitted.library, emitted.reason
    return out


def _run(built: Path, name: str, source: str) -> tuple[int, str]:
    """Status and output of a program that is linked with the library and gets its weights' path."""
    (built / f"{name}.c").write_text(source)
    command = ["cc", f"{name}.c", "-L.", "-lsmall", "-Wl,-rpath,$ORIGIN", "-o", name]
    subprocess.run(command, cwd=built, check=True)
    done = subprocess.run(
        [f"./{name}", "small.safetensors"],
        cwd=built,
        capture_output=True,
        text=True,
        check=False,
        timeout=HANGS_AFTER_S,
    )
    return done.returncode, done.stdout


def test_a_programs_signals_are_its_own(built: Path) -> None:
    """A daemon that blocks SIGTERM and waits for it must not be ended by a thread of the library."""
    assert _run(built, "signals", _SIGNALS) == (0, "told\n")


def test_a_system_that_does_not_tell_the_processor_is_left_alone(built: Path) -> None:
    """sched_getcpu is -1 there: a helper that leaves "processor -1" writes outside its set of processors."""
    assert _run(built, "unknown_cpu", _UNKNOWN_CPU) == (0, "1 0\n")
