"""The graph and the arrays that the seed's blocks leave unnamed."""

import numpy as np
import pytest

import tensorlogic as tl


@pytest.fixture
def executor():
    return tl.Executor()


@pytest.fixture
def layer():
    """``y = relu(x w)``: the seed's ``graph``."""
    b = tl.GraphBuilder()
    x, w = b.input("x", ("n", 10)), b.input("w", (10, 4))
    return b.build(y=b.relu(b.einsum("ni,ij->nj", x, w)))


@pytest.fixture
def make_inputs():
    """Return a function that gives the layer's inputs for a batch size and a seed."""

    def make(seed=0, rows=64):
        rng = np.random.default_rng(seed)
        return {"x": rng.normal(size=(rows, 10)), "w": rng.normal(size=(10, 4))}

    return make


@pytest.fixture
def inputs(make_inputs):
    return make_inputs()


@pytest.fixture
def relu_of():
    """The layer, said in NumPy."""
    return lambda inputs: np.maximum(inputs["x"] @ inputs["w"], 0)


@pytest.fixture
def fixed_layer():
    """The layer with its weights inside, so that ``x`` is all there is to feed: the graph and the weights."""
    w = np.random.default_rng(7).normal(size=(10, 4))
    b = tl.GraphBuilder()
    x = b.input("x", ("n", 10))
    return b.build(y=b.relu(b.einsum("ni,ij->nj", x, b.constant(w)))), w
