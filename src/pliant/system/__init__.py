"""What pliant asks of the operating system: files, memory, machine code, the CPU, pressure, energy, sockets.

No other module uses interfaces of one system. Another system needs a module or folder beside `linux` with the
names below, and a branch here. Nothing here knows of kernels or models.
"""

import sys

from pliant.errors import KernelError

__all__ = [
    "CpuFrequency", "EnergyMeter", "MemoryLimit", "allow_descriptors", "allowed_cpus", "c_function",
    "cpu_flags", "cpu_frequency", "cpu_model", "cpu_pressure", "cpu_quota", "disk_name", "drop_cached",
    "drop_pages", "find_meters", "frequency_limit", "has_direct_reads", "install_code", "is_file_map",
    "lock", "machine", "map_file", "map_shared", "memory_limits", "open_direct", "open_memory_pressure",
    "own_sockets", "peak_rss_bytes", "physical_cores", "private_memory", "read_into", "received_bytes",
    "refuse_connections", "request_tiles", "reserve_code", "resident_bytes", "rss_bytes", "shared_memory",
    "thread_functions", "trim_heap", "try_lock", "use_one_heap", "wait_for_pressure", "waited_s",
]  # fmt: skip

if sys.platform == "linux":
    from pliant.system.linux.control_groups import MemoryLimit, cpu_quota, memory_limits
    from pliant.system.linux.energy import EnergyMeter, find_meters
    from pliant.system.linux.files import (
        disk_name,
        drop_cached,
        drop_pages,
        has_direct_reads,
        is_file_map,
        lock,
        map_file,
        open_direct,
        read_into,
        try_lock,
    )
    from pliant.system.linux.machine_code import c_function, install_code, reserve_code
    from pliant.system.linux.memory import (
        map_shared,
        peak_rss_bytes,
        private_memory,
        resident_bytes,
        rss_bytes,
        shared_memory,
        trim_heap,
        use_one_heap,
    )
    from pliant.system.linux.pressure import cpu_pressure, open_memory_pressure, wait_for_pressure, waited_s
    from pliant.system.linux.processor import (
        CpuFrequency,
        allowed_cpus,
        cpu_flags,
        cpu_frequency,
        cpu_model,
        frequency_limit,
        machine,
        physical_cores,
        request_tiles,
    )
    from pliant.system.linux.sockets import (
        allow_descriptors,
        own_sockets,
        received_bytes,
        refuse_connections,
    )
    from pliant.system.linux.thread_code import thread_functions
else:
    raise KernelError(
        f"pliant runs on Linux, and this is {sys.platform!r}: use a Linux machine, container or virtual "
        "machine (on Windows, WSL 2)."
    )
