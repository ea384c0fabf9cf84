"""Products in AMX's tile registers: int8, bfloat16, and float32 as sums of two bfloat16."""
