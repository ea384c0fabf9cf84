"""Write LLVM IR: functions, typed values, elementary mathematics, instruction sets."""
