"""The native tests again for other processors than this one, and in surroundings unlike the developer's."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from tensorlogic.backends.native import support

sys.path.insert(0, str(Path(__file__).parent.parent))
from as_processor import PROCESSORS, surroundings

if not support.usable():
    pytest.skip("numba cannot be used", allow_module_level=True)

import llvmlite.binding

HERE = Path(__file__).parent
# what a processor's code could get wrong: accuracy, vectors, NaN and ties, packed bits, sums
FILES = ["functions", "rows", "semiring", "vjp", "integers", "weights"]
CHOSEN = (
    "vectorised or errors_stay or special_values or norm_kept or summed_precisely or log_sum_exp or certain_terms"
    " or (every_form and max_min) or multiply_gives_the_same or products_add_to_what or random_graphs_in_groups"
    " or those_of_whole_numbers or (unpacked_weights and int4)"
)


def run_tests(processor: str) -> None:
    files = [str(HERE / f"test_native_{name}.py") for name in FILES] + [str(HERE / "test_bits.py")]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", "not full", "-k", CHOSEN, *files],
        check=False, capture_output=True, text=True, timeout=900, env=surroundings(processor), cwd=HERE.parent.parent,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert int(done.stdout.split(" passed")[0].split()[-1]) > 40


@pytest.mark.skipif(platform.machine().lower() not in ("x86_64", "amd64"), reason="these are x86-64 processors")
@pytest.mark.parametrize("processor", PROCESSORS)
def test_native_code_for_another_processor(processor: str) -> None:
    if processor == "avx2" and not llvmlite.binding.get_host_cpu_features().get("avx2"):
        pytest.skip("this processor cannot run AVX2")
    run_tests(processor)


def test_native_code_in_other_surroundings(tmp_path: Path) -> None:
    """Without a home, with an empty cache, in the C locale, another time zone and on one core."""
    script = f"""
import os
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, list(os.sched_getaffinity(0))[:1])
import pytest
raise SystemExit(pytest.main(["-q", "-x", "-p", "no:cacheprovider", "-k", "norm_kept or results_are_written", {str(HERE / "test_native_rows.py")!r}]))
"""
    settings = {
        "HOME": str(tmp_path / "none"), "XDG_CACHE_HOME": "", "TMPDIR": str(tmp_path), "LC_ALL": "C", "PYTHONUTF8": "0",
        "PYTHONCOERCECLOCALE": "0", "TZ": "Pacific/Kiritimati",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", script], check=False, capture_output=True, text=True, timeout=600,
        env=os.environ | settings, cwd=HERE.parent.parent,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
