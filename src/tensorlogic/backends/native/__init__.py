"""The native tier: parts of plans as machine code, made by numba when they are worth it."""
