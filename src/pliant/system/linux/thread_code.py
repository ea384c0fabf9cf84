"""LLVM IR of what threads in machine code ask of the system: wait, wake, the CPU they are on, the time."""

from collections.abc import Mapping
from string import Template

_SYSTEM_CALLS = {
    "x86_64": {"futex": 202, "set_affinity": 203, "get_affinity": 204},
    "aarch64": {"futex": 98, "set_affinity": 122, "get_affinity": 123},
}
_FUNCTIONS = {
    "syscall": Template("declare i64 @syscall(i64, ...)"),
    "sched_getcpu": Template("declare i32 @sched_getcpu()"),
    "clock_gettime": Template("declare i32 @clock_gettime(i32, ptr)"),
    "current_cpu": Template("""define internal i32 @current_cpu() alwaysinline #0 {
  %cpu = call i32 @sched_getcpu()
  ret i32 %cpu
}"""),
    # 128 is FUTEX_WAIT_PRIVATE, 129 is FUTEX_WAKE_PRIVATE: <linux/futex.h>.
    "wait_while": Template("""define internal void @wait_while(ptr %at, i32 %value) alwaysinline #0 {
  call i64 (i64, ...) @syscall(i64 $futex, ptr %at, i32 128, i32 %value, ptr null)
  ret void
}"""),
    "wake_all": Template("""define internal void @wake_all(ptr %at) alwaysinline #0 {
  call i64 (i64, ...) @syscall(i64 $futex, ptr %at, i32 129, i32 2147483647, ptr null)
  ret void
}"""),
    # The kernel rejects an empty set, which changes nothing: the process may run nowhere else.
    "leave_cpu": Template("""define internal void @leave_cpu(i32 %cpu) noinline cold #0 {
  %cpus = alloca [128 x i8], align 8
  %n_bytes = call i64 (i64, ...) @syscall(i64 $get_affinity, i64 0, i64 128, ptr %cpus)
  %is_known = icmp sgt i64 %n_bytes, 0
  br i1 %is_known, label %leave, label %end
leave:
  %place = lshr i32 %cpu, 3
  %offset = zext i32 %place to i64
  %at = getelementptr inbounds i8, ptr %cpus, i64 %offset
  %allowed = load i8, ptr %at, align 1
  %number = and i32 %cpu, 7
  %shift = trunc i32 %number to i8
  %bit = shl i8 1, %shift
  %others = xor i8 %allowed, %bit
  store i8 %others, ptr %at, align 1
  %left = call i64 (i64, ...) @syscall(i64 $set_affinity, i64 0, i64 %n_bytes, ptr %cpus)
  store i8 %allowed, ptr %at, align 1
  %back = call i64 (i64, ...) @syscall(i64 $set_affinity, i64 0, i64 %n_bytes, ptr %cpus)
  br label %end
end:
  ret void
}"""),
    "write_time": Template("""define internal void @write_time(ptr %at) alwaysinline #0 {
  %failed = call i32 @clock_gettime(i32 1, ptr %at)
  ret void
}"""),  # CLOCK_MONOTONIC: <linux/time.h>
}


def thread_functions(architecture: str) -> Mapping[str, str]:
    """LLVM IR of internal functions by name, with attributes #0, and declarations of what they call.

    `i32 current_cpu()`: the number of the CPU that this thread runs on, below 0 if unknown.
    `void leave_cpu(i32 cpu)`: continue on another CPU than `cpu`, at least 0, if the process may.
    `void wait_while(ptr at, i32 value)`: sleep while *at is `value`, until `wake_all`; may return early.
    `void wake_all(ptr at)`: wake all threads that wait at this address.
    `void write_time(ptr at)`: write a clock that never goes back, as i64 seconds and i64 nanoseconds.
    """
    numbers = _SYSTEM_CALLS[architecture]
    return {name: text.substitute(numbers) for name, text in _FUNCTIONS.items()}
