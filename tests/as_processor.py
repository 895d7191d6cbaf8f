"""Run a command as on another processor than this one: what numba compiles, OpenBLAS and NumPy keep to what that one has.

python tests/as_processor.py generic pytest -q tests/backends
"""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache

PROCESSORS = {
    "generic": {  # x86-64 with SSE2, and SSE4 in NumPy, which needs it
        "NUMBA_CPU_NAME": "generic",
        "OPENBLAS_CORETYPE": "Nehalem",
        "NPY_DISABLE_CPU_FEATURES": "X86_V3 X86_V4 AVX512_ICL AVX512_SPR",
    },
    "avx2": {  # AVX2 and FMA, without AVX-512
        "NUMBA_CPU_NAME": "haswell",
        "OPENBLAS_CORETYPE": "Haswell",
        "NPY_DISABLE_CPU_FEATURES": "X86_V4 AVX512_ICL AVX512_SPR",
    },
}


@cache
def surroundings(processor: str) -> dict[str, str]:
    """Return the environment of this process, as on a processor."""
    found = os.environ | PROCESSORS[processor] | {"NUMBA_CPU_FEATURES": ""}
    # OpenBLAS 0.3.34 overruns its stack as Haswell on a Zen 4 (OpenMathLib/OpenBLAS#6021): there it is kept to AVX
    product = [sys.executable, "-c", "import numpy; x = numpy.ones((500, 500)); x @ x"]
    if processor == "avx2" and subprocess.run(product, env=found, check=False, capture_output=True).returncode < 0:
        found["OPENBLAS_CORETYPE"] = "Sandybridge"
    return found


if __name__ == "__main__":
    os.execvpe(sys.argv[2], sys.argv[2:], surroundings(sys.argv[1]))
