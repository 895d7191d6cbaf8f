"""Views that copy nothing, as the seed's README shows them: of an array, or of a tensor that is only named."""

import numpy as np
import pytest

import tensorlogic as tl


@pytest.fixture
def base():
    return np.arange(64.0 * 8).reshape(64, 8)


def same_memory(view, array):
    """Whether a view is the same elements in the same places."""
    found = np.asarray(view)
    return found.__array_interface__ == array.__array_interface__


def test_tensor_view(base):
    view = tl.TensorView(base, [tl.SliceSpec.Range(10, 50), tl.SliceSpec.Full])
    assert view.is_contiguous()
    assert view.rank() == 2
    assert isinstance(view, tl.TensorViewable)
    assert same_memory(view, base[10:50])

    named = tl.TensorView("weights", [tl.SliceSpec.Range(10, 50), tl.SliceSpec.Full])
    assert named.is_contiguous()
    assert named.rank() == 2
    assert same_memory(named.resolve(base), base[10:50])


def test_view_builder():
    tensor = np.arange(30.0 * 8 * 4).reshape(30, 8, 4)
    view = (
        tl.ViewBuilder(tensor, 3)
        .range_dim(0, 10, 20)  # slice dimension 0
        .index_dim(1, 5)  # index dimension 1
        .with_offset(100)
        .build()
    )
    assert view.rank() == 2
    assert not view.is_contiguous()
    assert np.shares_memory(np.asarray(view), tensor)
    np.testing.assert_array_equal(view, tensor[10:20, 5] + 100)  # each element says where it lies


def test_compose(base):
    view1 = tl.TensorView(base, [tl.SliceSpec.Range(10, 50), tl.SliceSpec.Full])
    view2 = tl.TensorView("a view", [tl.SliceSpec.Range(5, 10), tl.SliceSpec.Index(3)])
    composed = view1.compose(view2)
    assert same_memory(composed, base[15:20, 3])
    with pytest.raises(tl.ViewError):
        view1.compose(tl.TensorView("a view", [tl.SliceSpec.Range(30, 60), tl.SliceSpec.Full]))


def test_slice_specs():
    vector = np.arange(100.0)
    for spec, expected in (
        (tl.SliceSpec.Full, vector),  # full dimension
        (tl.SliceSpec.Range(0, 100), vector[0:100]),  # range slice
        (tl.SliceSpec.Index(42), vector[42, ...]),  # single index
        (tl.SliceSpec.Strided(start=0, end=100, stride=2), vector[0:100:2]),  # every second element
        (tl.SliceSpec.Reverse, vector[::-1]),  # reverse order
    ):
        assert same_memory(tl.TensorView(vector, [spec]), expected)
