"""Views against NumPy's own slicing: the same elements, the same memory, and every refusal."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import tensorlogic as tl
from tensorlogic.errors import ViewError
from tensorlogic.runtime.views import SliceSpec, TensorView, TensorViewable, ViewBuilder, view

Full, Reverse = SliceSpec.Full, SliceSpec.Reverse
Range, Index, Strided = SliceSpec.Range, SliceSpec.Index, SliceSpec.Strided
quick = settings(deadline=None, max_examples=300)
shapes = st.lists(st.integers(0, 5), max_size=4).map(tuple)


def address(array):
    return array.__array_interface__["data"][0]


def same_view(a, b):
    """The same elements in the same memory, by address where there are any."""
    assert a.shape == b.shape and a.dtype == b.dtype
    np.testing.assert_array_equal(a, b)
    if a.size:
        assert address(a) == address(b)
        assert [s for s, n in zip(a.strides, a.shape, strict=True) if n > 1] == [
            s for s, n in zip(b.strides, b.shape, strict=True) if n > 1
        ]


def numbers(shape):
    return np.arange(float(np.prod(shape, dtype=int))).reshape(shape)


@st.composite
def spec_for(draw, size, index=True):
    """A spec that fits an axis of a size, and what NumPy writes for it."""
    kinds = ["full", "reverse", "range", "strided", "back"] + (["index"] if index and size else [])
    match draw(st.sampled_from(kinds)):
        case "full":
            return Full, slice(None)
        case "reverse":
            return Reverse, slice(None, None, -1)
        case "index":
            i = draw(st.integers(-size, size - 1))
            return Index(i), i
        case "range":
            a, b = sorted(draw(st.tuples(st.integers(0, size), st.integers(0, size))))
            start = draw(st.sampled_from([a] + [None] * (a == 0) + [a - size] * (a < size)))
            end = draw(st.sampled_from([b] + [None] * (b == size) + [b - size] * (b < size)))
            return Range(start, end), slice(a, b)
        case "strided":
            a, b = sorted(draw(st.tuples(st.integers(0, size), st.integers(0, size))))
            step = draw(st.integers(1, 4))
            end = draw(st.sampled_from([b] + [None] * (b == size)))
            return Strided(a, end, step), slice(a, b, step)
        case "back":
            assume(size)
            b, a = sorted(draw(st.tuples(st.integers(-1, size - 1), st.integers(0, size - 1))))
            assume(a >= 0)
            step = draw(st.integers(-4, -1))
            start = draw(st.sampled_from([a, a - size] + [None] * (a == size - 1)))
            end = None if b == -1 else draw(st.sampled_from([b, b - size]))
            return Strided(start, end, step), slice(a, None if b == -1 else b, step)


@st.composite
def cases(draw):
    shape = draw(shapes)
    pairs = [draw(spec_for(n)) for n in shape]
    return shape, tuple(s for s, _ in pairs), tuple(i for _, i in pairs)


# against NumPy


@quick
@given(cases())
def test_a_view_is_what_numpy_slices(case):
    shape, specs, index = case
    base = numbers(shape)
    expected = base[(*index, ...)]
    got = TensorView(base, specs)
    same_view(got.resolve(), expected)
    same_view(base[got.to_index()], expected)
    same_view(np.asarray(got), expected)
    assert got.shape == expected.shape and got.rank() == expected.ndim
    assert got.is_contiguous() == expected.flags.c_contiguous
    named = TensorView("x", specs, base_shape=shape)
    assert named.shape == expected.shape and named.rank() == expected.ndim
    same_view(named.resolve(base), expected)
    same_view(TensorView(7, specs).resolve(base), expected)


@quick
@given(cases(), st.data())
def test_compose_is_slicing_twice(case, data):
    shape, specs, index = case
    base = numbers(shape)
    once = base[(*index, ...)]
    pairs = [data.draw(spec_for(n)) for n in once.shape]
    inner = tuple(s for s, _ in pairs)
    expected = once[(*(i for _, i in pairs), ...)]
    first = TensorView(base, specs)
    composed = first.compose(TensorView("any", inner))
    same_view(composed.resolve(), expected)
    same_view(base[composed.to_index()], expected)
    same_view(first.view(*inner).resolve(), expected)
    same_view(view(first, *inner).resolve(), expected)
    nested = TensorView(first, inner)
    same_view(nested.resolve(), expected)
    same_view(base[nested.to_index()], expected)
    assert first.compose(nested) == composed  # a view of the first says no more than its specs
    named = TensorView("x", specs)
    try:
        guess = named.compose(TensorView("any", inner))
    except ViewError as error:
        assert "base_shape" in str(error)
    else:
        same_view(guess.resolve(base), expected)


@quick
@given(cases(), st.data())
def test_compose_is_associative(case, data):
    shape, specs, _ = case
    a = TensorView("x", specs, base_shape=shape)
    b = TensorView("y", [data.draw(spec_for(n))[0] for n in a.shape], base_shape=a.shape)
    c = TensorView("z", [data.draw(spec_for(n))[0] for n in b.shape], base_shape=b.shape)
    base = numbers(shape)
    same_view(a.compose(b).compose(c).resolve(base), a.compose(b.compose(c)).resolve(base))


@quick
@given(cases())
def test_unbound_contiguity_never_promises_too_much(case):
    shape, specs, index = case
    if TensorView("x", specs).is_contiguous():
        assert numbers(shape)[(*index, ...)].flags.c_contiguous


@quick
@given(cases(), st.data())
def test_windows(case, data):
    shape, specs, index = case
    base = numbers(shape)
    part = base[(*index, ...)]
    assume(any(part.shape))
    axis = data.draw(st.sampled_from([a for a, n in enumerate(part.shape) if n]))
    size, step, dilation = (data.draw(st.integers(1, 3)) for _ in range(3))
    reach = (size - 1) * dilation + 1
    windows = TensorView(base, specs)
    if reach > part.shape[axis]:
        with pytest.raises(ViewError, match=f"reaches over {reach} elements"):
            windows.windowed(axis, size, step, dilation)
        return
    got = windows.windowed(axis, size, step, dilation)
    whole = np.lib.stride_tricks.sliding_window_view(part, reach, axis)
    expected = np.moveaxis(np.moveaxis(whole, axis, 0)[::step], 0, axis)[..., ::dilation]
    same_view(got.resolve(), expected)
    assert got.shape == expected.shape and got.rank() == expected.ndim
    assert not got.resolve().flags.writeable
    assert TensorView("x", specs).windowed(axis, size, step, dilation).rank() == expected.ndim
    inner = [data.draw(spec_for(n)) for n in expected.shape]  # and a view of the windows
    again = got.compose(TensorView("any", [s for s, _ in inner]))
    same_view(again.resolve(), expected[(*(i for _, i in inner), ...)])


@quick
@given(cases())
def test_views_index_tensors_of_a_builder(case):
    shape, specs, index = case
    b = tl.GraphBuilder()
    t = b.input("t", shape, "float32")
    assert tuple(t[TensorView("t", specs).to_index()].shape) == numbers(shape)[(*index, ...)].shape


# specs


def test_specs_print_and_compare():
    assert repr(Range(10, 50)) == "SliceSpec.Range(10, 50)" and str(Range(10, 50)) == "10:50"
    assert repr(Full) == "SliceSpec.Full" and str(Full) == ":"
    assert repr(Reverse) == "SliceSpec.Reverse" and str(Reverse) == "::-1"
    assert repr(Index(3)) == "SliceSpec.Index(3)" and str(Index(3)) == "3"
    assert repr(Strided(0, 9, 2)) == "SliceSpec.Strided(0, 9, 2)" and str(Strided(None, None, 2)) == "::2"
    assert Range(range(2, 5)) == Range(slice(2, 5)) == Range(2, 5) != Range(2, 6)
    assert len({Full, Reverse, Index(1), Index(1), Range(1, 2)}) == 4
    with pytest.raises(AttributeError):
        Full.start = 3


def test_ranges_and_slices_stand_for_specs():
    base = np.arange(10)
    for r in (range(2, 8), range(8, 2, -1), range(8, -1, -2), range(0), range(0, 10, 3)):
        np.testing.assert_array_equal(view(base, r).resolve(), base[list(r)] if len(r) else base[:0])
    for s in (
        slice(None),
        slice(2, None),
        slice(None, None, -1),
        slice(None, None, 3),
        slice(-3, None),
        slice(1, 9, 2),
    ):
        same_view(view(base, s).resolve(), base[s])
    same_view(view(base, np.int64(3)).resolve(), base[3, ...])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Range(range(0, 9, 2)), r"step 1.*\n.*(\n.*)*Strided\(0, 9, 2\)"),
        (lambda: Strided(0, 9, 0), "stride cannot be 0"),
        (lambda: view("x", [1, 2]), "without a copy"),
        (lambda: view("x", np.array([1, 2])), "without a copy"),
        (lambda: view("x", True), "without a copy"),
        (lambda: view("x", None), "without a copy"),
        (lambda: view("x", Range(5, 2)), "runs from 5 away from 2"),
        (lambda: view(np.arange(4), Index(4)), "index 4 is out of range for axis 0 of size 4"),
        (lambda: view(np.arange(4), Index(-5)), "index -5 is out of range"),
        (lambda: view(np.arange(0), Index(0)), "index 0 is out of range for axis 0 of size 0"),
        (lambda: view(np.arange(4), Range(2, 9)), r"Range\(2, 9\) is out of range for axis 0 of size 4"),
        (lambda: view(np.arange(4), Range(-5, 2)), "out of range"),
        (lambda: view(np.arange(4), Range(3, -2)), "runs from 3 away from 2"),
        (lambda: view(np.arange(4), Strided(4, 0, -1)), "out of range"),
        (lambda: view(np.arange(4), Strided(0, 3, -1)), "away from 3"),
        (lambda: view(np.arange(4), Full, Full), "2 specs .* for a tensor of 1 axes"),
        (lambda: TensorView("x", [Full, Full], base_shape=(3,)), "2 specs .* for a tensor of 1 axes"),
        (lambda: TensorView(np.arange(4), [], base_shape=(3,)), "base_shape is"),
        (lambda: view("x", Full).resolve(), "tensor 'x' is only named here"),
        (lambda: view("x", Full).resolve(np.zeros((2, 2))), "1 axes, the array has shape"),
        (lambda: TensorView("x", [Full], base_shape=(3,)).resolve(np.zeros(4)), "shape .3., the array has shape .4."),
        (lambda: view("x", Range(0, 9)).resolve(np.zeros(4)), "out of range for axis 0 of size 4"),
        (lambda: view("x", Full).resolve([1, 2]), "list has no memory to look at without a copy"),
        (lambda: view([1, 2]), "list has no memory"),
        (lambda: view(np.arange(4), Range(0, 2)).view(Index(2)), "index 2 is out of range for axis 0 of size 2"),
        (lambda: view("x", Range(0, 2)).compose(view("y", Index(2))), "index 2 is out of range for axis 0 of size 2"),
        (lambda: view("x", Range(0, 2)).compose(view("y", Full, Full)), "2 specs .* for a view of 1 axes"),
        (lambda: view("x", Range(2, None)).compose(view("y", Index(2))), "depends on the size of axis 0"),
        (lambda: view("x", Full).windowed(1, 2), "no axis 1 in a tensor of 1 axes"),
        (lambda: view("x", Full).windowed(0, 0), "at least 1, got 0"),
        (lambda: view("x", Full).windowed(0, 2).to_index(), "with windows is not an index"),
        (lambda: view("x", Full).with_offset(2).to_index(), "with an offset is not an index"),
        (lambda: ViewBuilder("x", 2).index_dim(2, 0), "no axis 2 in a tensor of 2 axes"),
        (lambda: ViewBuilder("x"), "rank of tensor 'x' is not known"),
        (lambda: ViewBuilder(np.zeros((2, 2)), 3), "given as 3, but the tensor has 2 axes"),
    ],
)  # fmt: skip
def test_refusals(make, message):
    with pytest.raises(ViewError, match=message):
        make()


# offsets


def test_offset_moves_through_the_memory():
    base = np.arange(24.0).reshape(4, 6)
    part = view(base, Range(0, 2), Range(0, 3))
    moved = part.with_offset(7)
    same_view(moved.resolve(), base[1:3, 1:4])
    assert moved.with_offset(-7) == part
    same_view(ViewBuilder(base, 2).range_dim(0, 0, 2).index_dim(1, 0).with_offset(8).build().resolve(), base[1:3, 2])
    same_view(view(base, Reverse, Index(5)).with_offset(-5).resolve(), base[::-1, 0])
    same_view(moved.view(Index(1)).resolve(), base[2, 1:4])
    same_view(
        part.windowed(1, 2).with_offset(6).resolve(), view(base, Range(1, 3), Range(0, 3)).windowed(1, 2).resolve()
    )
    moved.assign(0)
    assert not base[1:3, 1:4].any() and base[0].any()


@pytest.mark.parametrize("n", [-1, 16, 100, -(10**12)])
def test_offset_stays_inside_the_base(n):
    owner = np.arange(100.0)
    base = owner[10:34].reshape(4, 6)  # what lies around it is someone else's
    with pytest.raises(ViewError, match=f"offset of {n} elements leaves the base's memory.*(\n.*)*0 to 15 would fit"):
        view(base, Range(0, 2), Range(0, 3)).with_offset(n)
    with pytest.raises(ViewError, match="leaves"):
        view("x", Range(0, 2), Range(0, 3)).with_offset(n).resolve(base)


def test_offset_keeps_flags_and_owner():
    base = np.arange(6, dtype="f4")
    base.setflags(write=False)
    moved = view(base, Range(0, 2)).with_offset(3).resolve()
    assert not moved.flags.writeable and moved.dtype == base.dtype
    kept = view(np.arange(6.0), Range(0, 2)).with_offset(3).resolve()
    np.testing.assert_array_equal(kept, [3, 4])  # the memory outlives the array's name
    assert view(np.zeros((0, 3))).with_offset(9).resolve().shape == (0, 3)
    records = np.zeros(4, dtype=[("a", "i4"), ("b", "f8")])
    records["a"] = range(4)
    assert view(records, Range(0, 2)).with_offset(2).resolve()["a"].tolist() == [2, 3]
    things = np.array(["a", "b", None, 3], dtype=object)
    assert view(things, Range(0, 2)).with_offset(1).resolve().tolist() == ["b", None]


# NumPy's protocol


def test_array_protocol():
    base = np.arange(6.0)
    part = view(base, Range(1, 4))
    assert np.shares_memory(np.asarray(part), base)
    assert np.shares_memory(np.asarray(part, copy=False), base)
    assert not np.shares_memory(np.array(part, copy=True), base)
    assert np.asarray(part, dtype="f4").dtype == np.float32
    with pytest.raises(ValueError, match="without a copy"):
        np.asarray(part, dtype="f4", copy=False)
    assert np.add(part, 1).tolist() == [2, 3, 4]


def test_memory_of_others():
    data = bytearray(b"abcdef")
    view(memoryview(data), Range(1, 3)).assign(np.frombuffer(b"XY", np.uint8))
    assert data == b"aXYdef"


# in place


def test_update_and_assign_write_through():
    base = numbers((4, 5))
    expected = base.copy()
    part = view(base, Strided(0, 4, 2), Reverse)
    assert part.update(np.add, 1.0) is part
    expected[0:4:2, ::-1] += 1
    part.update(np.multiply, np.arange(5.0))
    expected[0:4:2, ::-1] *= np.arange(5.0)
    part.update(np.negative)
    expected[0:4:2] *= -1
    np.testing.assert_array_equal(base, expected)
    view(base, 1).assign([9, 8, 7, 6, 5])
    assert base[1].tolist() == [9, 8, 7, 6, 5]
    view(base, 1, 2).assign(3)
    assert base[1, 2] == 3
    view(base).update(np.add, view(base))  # the same elements in the same places
    view(base, Range(0, 1)).update(np.subtract, base[0])
    assert not base[0].any()
    view(base, 3).assign(view(base, 2))
    np.testing.assert_array_equal(base[3], base[2])
    view(base, 2).assign(base[2])


def test_small_integers_take_python_numbers():
    base = np.zeros(4, np.uint8)
    view(base).assign(200)
    view(base, Range(0, 2)).update(np.add, 5)
    assert base.tolist() == [205, 205, 200, 200]


def test_interleaved_operands_do_not_overlap():
    base = np.arange(10.0)
    view(base, Strided(0, 10, 2)).update(np.add, base[1::2])
    assert base.tolist() == [1, 1, 5, 3, 9, 5, 13, 7, 17, 9]


@quick
@given(cases(), st.data())
def test_update_is_numpy_in_place(case, data):
    shape, specs, index = case
    base = numbers(shape)
    expected = base.copy()
    expected[(*index, ...)] *= 3
    view(base, *specs).update(np.multiply, 3)
    np.testing.assert_array_equal(base, expected)
    expected[(*index, ...)] = 7
    view(base, *specs).assign(7)
    np.testing.assert_array_equal(base, expected)


def test_update_allocates_nothing_of_the_array_s_size():
    base = np.zeros((1000, 1000))
    integers = np.ones((1000, 1000), np.int32)
    part = view(base, Strided(0, 1000, 2), Reverse)
    tracemalloc.start()
    try:
        part.update(np.add, base[0:1000:2, ::-1])  # known to be the target itself
        part.update(np.add, integers[::2])  # cast in NumPy's small buffers
        part.update(np.add, 1.0)
        part.assign(integers[1::2])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000  # the view has 4,000,000 bytes


def read_only():
    base = np.arange(6.0)
    base.setflags(write=False)
    return base


def repeated():
    return np.lib.stride_tricks.as_strided(np.arange(3.0), (2, 3), (0, 8))


@pytest.mark.parametrize(
    ("make", "operand", "message"),
    [
        (lambda: view("x", Full), 1.0, "only named"),
        (lambda: view(read_only(), Range(0, 2)), 1.0, "the base is read-only"),
        (lambda: view(np.arange(6.0)).windowed(0, 2), 1.0, "windows share their elements"),
        (lambda: view(np.arange(6.0)).windowed(0, 2).view(0), 1.0, "windows share their elements"),
        (lambda: view(np.broadcast_to(np.arange(3.0), (2, 3))), 1.0, "read-only"),
        (lambda: view(repeated()), 1.0, "elements of the base share memory"),
        (lambda: view(repeated(), 0), 1.0, "elements of the base share memory"),
        (lambda: view(np.lib.stride_tricks.as_strided(np.arange(6.0), (3, 3), (8, 8))), 1.0, "share memory"),
        (lambda: view(np.arange(6.0), Range(0, 3)), np.ones((2, 3)), r"shape \[2, 3\].* does not fit the view's \[3\]"),
        (lambda: view(np.arange(6.0), Range(0, 3)), np.ones(2), "does not fit"),
        (lambda: view(np.arange(6.0), Range(0, 1)), np.ones(3), "does not fit"),
        (lambda: view(np.arange(6)), 1.5, "does not fit int64 elements"),
        (lambda: view(np.arange(6)), np.ones(6), "does not fit int64 elements"),
        (lambda: view(np.zeros(3, np.uint8)), 300, "does not fit uint8 elements"),
        (lambda: view(np.zeros(3, np.float32)), 1j, "does not fit float32 elements"),
    ],
)
def test_writing_is_refused(make, operand, message):
    target = make()
    with pytest.raises(ViewError, match=message):
        target.update(np.add, operand)
    with pytest.raises(ViewError, match=message):
        target.assign(operand)


@pytest.mark.parametrize(
    "other",
    [lambda b: b[1:5], lambda b: b[3::-1], lambda b: b[2:3], lambda b: view(b, Range(1, 5)), lambda b: b[:4].view("i8"),
     lambda b: b[:1]],
)  # fmt: skip
def test_overlapping_operands_are_refused(other):
    base = np.arange(8.0)
    before = base.copy()
    target = view(base, Range(0, 4))
    with pytest.raises(ViewError, match=r"overlaps the view's memory in another layout(.|\n)*copy\(\)"):
        target.update(np.add, other(base))
    with pytest.raises(ViewError, match="overlaps"):
        target.assign(other(base))
    np.testing.assert_array_equal(base, before)


@pytest.mark.parametrize(
    ("ufunc", "count"), [(np.add, 0), (np.matmul, 1), (np.divmod, 1), (np.sum, 0), (np.negative, 1)]
)
def test_only_elementwise_ufuncs_update(ufunc, count):
    with pytest.raises(ViewError, match="element-wise ufunc"):
        view(np.ones((2, 2))).update(ufunc, *[np.ones((2, 2))] * count)


def test_refused_writes_leave_the_base_alone():
    base = np.arange(4)
    with pytest.raises(ViewError):
        view(base).update(np.true_divide, 2)
    assert base.tolist() == [0, 1, 2, 3]


# the rest


def test_builder():
    tensor = numbers((30, 8, 4))
    built = ViewBuilder(tensor, 3).range_dim(0, 10, 20).index_dim(1, 5).stride_dim(2, 0, 4, 2).build()
    same_view(built.resolve(), tensor[10:20, 5, 0:4:2])
    same_view(ViewBuilder(tensor).reverse_dim(-1).build().resolve(), tensor[..., ::-1])
    same_view(ViewBuilder(built).range_dim(0, range(1, 3)).build().resolve(), tensor[11:13, 5, 0:4:2])
    assert ViewBuilder(7, 2).build() == TensorView(7, [Full, Full])


def test_contiguity_by_specs_alone():
    yes = [
        (),
        (Full, Full),
        (Range(1, 3), Full),
        (Index(1), Range(0, 2), Full),
        (Index(0), Index(1)),
        (Strided(0, 4, 1),),
    ]
    no = [
        (Full, Range(0, 2)),
        (Reverse,),
        (Strided(0, 4, 2),),
        (Full, Index(0)),
        (Range(0, 2), Index(0)),
        (Range(0, 2),) * 2,
    ]
    assert all(view("x", *specs).is_contiguous() for specs in yes)
    assert not any(view("x", *specs).is_contiguous() for specs in no)
    assert not view("x", Full).windowed(0, 2).is_contiguous()
    assert TensorView(view("x", Reverse), [Reverse]).is_contiguous()


def test_views_print():
    base = np.zeros((4, 5), np.float32)
    assert repr(view(base, Range(1, 3), Reverse)) == "<TensorView of float32[4, 5] at [1:3, ::-1], shape [2, 5]>"
    assert repr(view("x", 3, Full)) == "<TensorView of 'x' at [3, :]>"
    windows = view(base, 0).windowed(0, 3, step=2)
    assert repr(windows).endswith("windows(axis=0, size=3, step=2, dilation=1), shape [2, 3]>")


def test_viewable():
    class Mine:
        def view(self, *specs):
            return TensorView("mine", specs)

    assert isinstance(Mine(), TensorViewable) and isinstance(view("x"), TensorViewable)
    assert not isinstance([], TensorViewable)


def test_views_compare_by_base_and_specs():
    base = np.zeros(3)
    assert view(base, 0) == view(base, 0) != view(np.zeros(3), 0)
    assert view("x", 0) == view("x", 0) != view("x", 1)
    assert view("1", Full) != view(1, Full)
    assert len({view("x", 0), view("x", 0), view(base, 0), view(base, 0)}) == 2


def test_composing_equal_views_slices_twice():
    twice = view(np.arange(10), Range(2, 10)).compose(view("x", Range(2, 8)))
    assert twice.resolve().tolist() == [4, 5, 6, 7, 8, 9]
    same = view("x", Range(2, 6))
    assert same.compose(view("x", Range(2, 4))).to_index() == (slice(4, 6),)
    short = view("x", Strided(0, 10, 2))
    assert short.compose(view("x", Range(0, 2))).compose(view("x", Range(0, 2))).to_index() == (slice(0, 3, 2),)
    assert view("x", Reverse).compose(view("x", Reverse)).to_index() == (slice(None),)


# views as inputs and outputs of runs


def _doubled():
    b = tl.GraphBuilder()
    x = b.input("x", ("n", 4), "float64")
    return b.build(y=x * 2.0, total=b.sum(x))


@pytest.mark.parametrize(
    "run",
    [
        lambda g, inputs: tl.Executor().execute(g, inputs),
        lambda g, inputs: tl.Executor(native=True).execute(g, inputs),
        lambda g, inputs: tl.Executor("reference").execute(g, inputs),
        lambda g, inputs: tl.Executor().execute(g, inputs, budget=10**6),
        lambda g, inputs: tl.Executor().execute_jit(g, inputs),
        lambda g, inputs: tl.Executor().compile_graph(g)(inputs),
        lambda g, inputs: tl.Executor().forward(g, inputs),
    ],
)
def test_a_view_is_an_input_like_any_array(run):
    base = numbers((50, 4))
    for specs in ([Range(10, 20)], [Reverse], [Strided(0, 50, 7)]):
        part = view(base, *specs)
        out = run(_doubled(), {"x": part})
        np.testing.assert_array_equal(out["y"], part.resolve() * 2)
        assert out["total"] == part.resolve().sum()


def test_a_view_goes_into_a_run_without_a_copy():
    base = numbers((100_000, 4))
    part, executor = view(base, Range(1, 99_999)), tl.Executor()
    b = tl.GraphBuilder()
    graph = b.build(total=b.sum(b.input("x", ("n", 4), "float64")))
    executor.execute(graph, {"x": part})
    tracemalloc.start()
    try:
        executor.execute(graph, {"x": part})
        assert tracemalloc.get_traced_memory()[1] < base.nbytes / 10
    finally:
        tracemalloc.stop()
    assert np.shares_memory(np.from_dlpack(part), base)
    assert executor.plan(graph, {"x": part}).inputs[0][2].dtype == "float64"
    with pytest.raises(ViewError, match="only named"):
        executor.execute(graph, {"x": view("w", Full, Full)})


def test_an_output_may_be_written_into_a_view():
    base, x = np.zeros((6, 4)), numbers((3, 4))
    out = tl.Executor().execute(_doubled(), {"x": x}, out={"y": view(base, Strided(0, 6, 2))})
    np.testing.assert_array_equal(base[::2], x * 2)
    assert not base[1::2].any()
    assert np.shares_memory(out["y"], base)
    base.setflags(write=False)
    with pytest.raises(ViewError, match="read-only"):
        tl.Executor().execute(_doubled(), {"x": x}, out={"y": view(base, Range(0, 3))})
