"""Steps that graph sessions run between executables, in numpy: operators and control flow that depend on
data.
"""
