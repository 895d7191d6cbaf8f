"""The seed's traits are protocols: same methods, same parameters, and anything that has them satisfies them."""

import inspect

import pytest
from blocks import TRAITS

import tensorlogic as tl


@pytest.mark.parametrize("trait", TRAITS)
def test_trait(trait):
    protocol = getattr(tl, trait)
    for method, parameters in TRAITS[trait].items():
        assert tuple(inspect.signature(getattr(protocol, method)).parameters) == ("self", *parameters)

    backend = type("Backend", (), {m: lambda self, *args, **kwargs: None for m in TRAITS[trait]})
    assert isinstance(backend(), protocol)
    assert not isinstance(object(), protocol)
