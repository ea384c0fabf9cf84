"""Run a script of bench/ in a process, and children, to which Linux refuses AMX's registers.

    python bench/without_amx.py bench/int8_products.py [...]

A seccomp filter refuses the request (arch_prctl(ARCH_REQ_XCOMP_PERM)), as containers may. Then every runtime
uses AVX-512 without AMX: pliant, onnxruntime and OpenVINO.
"""

import ctypes
import errno
import os
import runpy
import struct
import sys

_NO_NEW_PRIVILEGES, _SECCOMP, _FILTER = 38, 22, 2
_ARCH_PRCTL, _REQUEST_PERMISSION = 158, 0x1023
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_REFUSE, _ALLOW = 0x00050000 | errno.EPERM, 0x7FFF0000


def main() -> None:
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    refuse_amx()
    sys.argv = sys.argv[1:]
    sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
    runpy.run_path(sys.argv[0], run_name="__main__")


def refuse_amx() -> None:
    """Install the filter for this process and its children, which cannot remove it."""
    number, first_argument = 0, 16  # offsets in struct seccomp_data
    lines = [
        (_LOAD, 0, 0, number),
        (_JUMP_IF_EQUAL, 0, 3, _ARCH_PRCTL),
        (_LOAD, 0, 0, first_argument),
        (_JUMP_IF_EQUAL, 0, 1, _REQUEST_PERMISSION),
        (_RETURN, 0, 0, _REFUSE),
        (_RETURN, 0, 0, _ALLOW),
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in lines))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(lines), ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) or libc.prctl(_SECCOMP, _FILTER, program, 0, 0):
        raise SystemExit(f"the system takes no seccomp filter: {os.strerror(ctypes.get_errno())}.")


if __name__ == "__main__":
    main()
