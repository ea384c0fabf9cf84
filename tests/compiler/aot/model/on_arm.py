"""A C library of a model for 64-bit Arm, under emulation."""

import shutil
import subprocess
from collections.abc import Sequence

import numpy as np
import pytest

from pliant.api.compile_library import LibraryReport
from tests.compiler.aot.model.conftest import compiled_program

_COMPILER, _EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64"
_NUMBERS = """
#include <stdio.h>
#include <stdlib.h>
#include "pliant_model.h"

int main(int n, char **words) {
    struct pliant_error error;
    struct pliant_model *model = pliant_model_open(words[1], NULL, &error);
    if (!model) {
        fprintf(stderr, "%s\\n", error.message);
        return 1;
    }
    unsigned n_numbers = pliant_model_about(model)->n_numbers;
    struct pliant_answer answer = {.numbers = calloc(n_numbers, sizeof(float))};
    for (int i = 2; i < n; i++) {
        if (pliant_model_run(model, words[i], 0, &answer)) {
            fprintf(stderr, "%s\\n", answer.error.message);
            return 1;
        }
        for (unsigned k = 0; k < n_numbers; k++)
            printf("%.9g ", (double)answer.numbers[k]);
        putchar('\\n');
    }
    free(answer.numbers);
    pliant_model_close(model);
    return 0;
}
"""


def skip_without_emulator() -> None:
    for tool in (_COMPILER, _EMULATOR):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not here")


def answers_on_arm(report: LibraryReport, texts: Sequence[str]) -> np.ndarray:
    """The numbers of each text's answer, [texts, numbers]."""
    source = report.output.parent / "numbers.c"
    source.write_text(_NUMBERS)
    program = compiled_program(report, source, _COMPILER)
    command = [_EMULATOR, "-L", "/usr/aarch64-linux-gnu", program, report.output, *texts]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return np.array([line.split() for line in done.stdout.splitlines()], np.float32)
