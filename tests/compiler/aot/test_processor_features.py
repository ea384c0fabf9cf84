"""The check of the processor in C, against the features that Linux reports."""

import shutil
import subprocess
from pathlib import Path

import pytest

from pliant import system
from pliant.compiler.aot.c_source import quote
from pliant.compiler.aot.processor_features import FEATURE_BITS, PROCESSOR, feature_source, processor_header
from pliant.kernels.emit.isa import ISAS, Isa, host_flags, host_isa, needed_flags
from tests.compiler.aot.foreign_rows import isa_id

_PROGRAM = """#define _GNU_SOURCE
#include "processor.h"
#include <stdio.h>
TABLES
static const struct feature ALL[] = {ROWS};
int main(void) {
    for (unsigned i = 0; i < sizeof ALL / sizeof *ALL; i++)
        if (has_feature(&ALL[i])) puts(ALL[i].name);
    const char *missing = missing_feature(FEATURES, N_FEATURES, STATES, USES_TILES);
    return missing != NULL;
}
"""


@pytest.mark.parametrize("isa", ISAS, ids=isa_id)
def test_every_feature_that_a_row_needs_has_a_bit(isa: Isa) -> None:
    """A new row would otherwise be compiled without its check."""
    assert needed_flags(isa) <= FEATURE_BITS.keys()
    assert all(quote(name) in feature_source(isa) for name in needed_flags(isa))


def test_c_finds_the_features_that_linux_reports(tmp_path: Path) -> None:
    """Each bit stands where the processor has it, and the library for this processor opens."""
    if shutil.which("cc") is None:
        pytest.skip("no cc here")
    known = {
        isa_name for isa in ISAS if isa.architecture == system.machine() for isa_name in needed_flags(isa)
    }
    rows = ", ".join(
        f"{{{quote(name)}, {', '.join(map(str, FEATURE_BITS[name]))}}}" for name in sorted(known)
    )
    (tmp_path / PROCESSOR).write_text(processor_header())
    program = _PROGRAM.replace("TABLES", feature_source(host_isa())).replace("ROWS", rows)
    (tmp_path / "probe.c").write_text(program)
    command = ["cc", "-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "probe.c", "-o", "probe"]
    subprocess.run(command, cwd=tmp_path, check=True)
    done = subprocess.run([tmp_path / "probe"], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert set(done.stdout.split()) == known & host_flags()
