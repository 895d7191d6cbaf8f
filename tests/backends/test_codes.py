"""One code, one fault: the mistakes that backends refuse, each under a code of its own that the catalogue explains."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorlogic as tl
from tensorlogic.backends.base import get_backend
from tensorlogic.backends.numpy import as_numpy
from tensorlogic.faults import FAULTS

BITS = tl.BitTensor(np.ones((2, 3), bool))
MISTAKES: dict[str, Callable[[], Any]] = {
    "E401": lambda: get_backend("numpi"),
    "E406": lambda: get_backend(3),  # type: ignore[arg-type]
    "E410": lambda: as_numpy(np.ma.masked_array([1, 2], [True, False]), None),
    "E412": lambda: as_numpy(np.array(["a"]), None),
    "E413": lambda: as_numpy([0.5], "int64"),
    "E420": lambda: tl.BitTensor.of(np.zeros(3, np.uint64), (2, 3)),
    "E421": lambda: tl.BitTensor([1, 0]).mT,
    "E422": lambda: BITS.transpose(0, 0),
    "E423": lambda: BITS.any(axis=4),
    "E424": BITS.diagonal,
    "E425": lambda: BITS @ tl.BitTensor(True),
    "E426": lambda: tl.BitTensor.einsum("ij,ij,ij->i", BITS, BITS, BITS),
    "E427": lambda: tl.BitTensor.einsum("ij,jk->ik", BITS, BITS),
    "E428": lambda: BITS & np.ones((5, 3), bool),
}


@pytest.mark.parametrize("code", MISTAKES)
def test_a_mistake_has_its_own_code(code: str) -> None:
    with pytest.raises(tl.TensorLogicError) as caught:
        MISTAKES[code]()
    assert caught.value.diagnostic.code == code


def test_every_code_is_in_the_catalogue() -> None:
    folder = Path(tl.__file__).parent / "backends"
    used = {code for file in folder.rglob("*.py") for code in re.findall(r'code="(E\d+)"', file.read_text("utf-8"))}
    assert used <= FAULTS.keys() and used >= MISTAKES.keys()
