"""The bitwidths at which a store keeps a shard and a plan may run it."""

PLANES = 6  # bit-planes of a shard: its codes have so many bits
FULL_BITS = 32  # a shard in the checkpoint's own precision, whatever that is
BITS = (*range(1, PLANES + 1), FULL_BITS)
LOWEST_BITS = 2  # below two bits a submodel answers at random (STI 5.4.3 starts at 2)
