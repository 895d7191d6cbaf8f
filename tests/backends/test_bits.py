"""Packed bits against NumPy's truth values: words, BitTensor, contractions and groups of steps."""

from __future__ import annotations

import contextlib
import pickle
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pytest

import tensorlogic as tl
from tensorlogic.backends import packed
from tensorlogic.backends.bitplan import bind_bit_group, bind_bits
from tensorlogic.backends.native import facts, support
from tensorlogic.backends.native.facts import NativeFacts
from tensorlogic.passes.specialize import specialize
from tensorlogic.plan import sharing
from tensorlogic.plan.build import lay_out
from tensorlogic.plan.groups import find_groups

COLUMNS = [0, 1, 7, 63, 64, 65, 127, 128, 129, 1030]
DENSITIES = [0.0, 0.03, 0.5, 1.0]


@pytest.fixture(params=["native", "numpy"])
def tier(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways that words are computed: by kernels, and by NumPy where numba is absent."""
    if request.param == "native":
        assert support.usable()
        packed.load()
    else:
        monkeypatch.setattr(packed, "_native", lambda bits: None)
    return str(request.param)


@pytest.fixture
def many_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Share even the smallest work."""
    monkeypatch.setattr(sharing, "PACKED_BYTES", 0)
    monkeypatch.setattr(sharing, "ORED_ROWS", 0)
    monkeypatch.setattr(packed, "allowed", lambda: 3)


def flags(shape: Any, density: float = 0.3, seed: int = 0) -> Any:
    return np.random.default_rng(seed).random(shape) < density


def same(got: tl.BitTensor, expected: Any) -> None:
    """Equal values, and words that a fresh packing would give: the padding is clean."""
    expected = np.asarray(expected)
    assert isinstance(got, tl.BitTensor)
    assert got.shape == expected.shape
    np.testing.assert_array_equal(np.asarray(got), expected)
    np.testing.assert_array_equal(got.words, tl.BitTensor(expected).words)


# packing


@pytest.mark.parametrize("n", COLUMNS)
@pytest.mark.parametrize("density", DENSITIES)
def test_packing_is_numpys_little_endian_packbits(tier: str, n: int, density: float) -> None:
    x = flags((5, n), density)
    words = packed.pack(x)
    assert words.shape == (5, -(-n // 64)) and words.dtype == np.uint64
    expected = np.zeros((5, words.shape[1] * 8), np.uint8)
    expected[:, : -(-n // 8)] = np.packbits(x, axis=1, bitorder="little")
    np.testing.assert_array_equal(words, expected.view("<u8"))
    back = packed.unpack(words, n)
    assert back.dtype == np.bool_
    np.testing.assert_array_equal(back, x)
    assert packed.count(words) == x.sum()


@pytest.mark.parametrize("n", [1, 63, 64, 65, 200])
@pytest.mark.parametrize("rows", [0, 1, 6])
def test_columns_of_a_matrix_are_packed_where_they_lie(tier: str, n: int, rows: int) -> None:
    whole = flags((rows, 230), 0.5)
    for start in (0, 3, 230 - n):  # the last ends with the memory
        columns = whole[:, start : start + n]
        np.testing.assert_array_equal(packed.pack(columns), packed.pack(columns.copy()))
        np.testing.assert_array_equal(packed.pack(columns[::-1]), packed.pack(columns[::-1].copy()))
        once = np.broadcast_to(whole[:1, start : start + n], (len(whole[:1]) * 4, n))
        np.testing.assert_array_equal(packed.pack(once), packed.pack(once.copy()))


@pytest.mark.parametrize("n", [1, 63, 65, 200])
def test_unpacking_writes_where_it_is_told_and_nowhere_else(tier: str, n: int) -> None:
    x = flags((6, n))
    room = np.ones((8, n), bool)
    out = packed.unpack(packed.pack(x), n, room[1:7])
    assert out.base is room
    np.testing.assert_array_equal(room[1:7], x)
    assert room[0].all() and room[7].all()
    scattered = np.zeros((6, 2 * n), bool)
    packed.unpack(packed.pack(x), n, scattered[:, ::2])
    np.testing.assert_array_equal(scattered[:, ::2], x)
    assert not scattered[:, 1::2].any()


def test_arrays_that_do_not_lie_in_order(tier: str) -> None:
    x = flags((70, 90, 3))
    for view in (
        x.T,
        x[::2, ::-1],
        x[:, 5:80].swapaxes(0, 1),
        np.broadcast_to(x[:, :1], x.shape),
        np.asfortranarray(x),
    ):
        np.testing.assert_array_equal(packed.unpack(packed.pack(view), view.shape[-1]), view)


def test_many_threads_convert_alike(tier: str, many_threads: None) -> None:
    x = flags((257, 130))
    words = packed.pack(x)
    np.testing.assert_array_equal(packed.unpack(words, 130), x)
    np.testing.assert_array_equal(packed.unpack(packed.transpose(words, 130), 257), x.T)


# the array type


@pytest.mark.parametrize("n", COLUMNS)
def test_bitwise_operations(tier: str, n: int) -> None:
    x, y = flags((3, n), 0.4, 1), flags((3, n), 0.6, 2)
    a, b = tl.BitTensor(x), tl.BitTensor.from_array(y)
    same(a & b, x & y)
    same(a | b, x | y)
    same(a ^ b, x ^ y)
    same(~a, ~x)
    same(a == b, x == y)
    same(a != b, x != y)
    same(a | y, x | y)
    same(y & a, x & y)  # NumPy leaves it to us
    assert a.sum() == x.sum()


@pytest.mark.parametrize(
    "shapes", [((3, 70), (70,)), ((3, 1), (3, 70)), ((2, 1, 70), (3, 1)), ((), (2, 66)), ((1, 1), (0, 5))]
)
def test_broadcasting(tier: str, shapes: Any) -> None:
    x, y = flags(shapes[0], 0.5, 1), flags(shapes[1], 0.5, 2)
    same(tl.BitTensor(x) & tl.BitTensor(y), x & y)
    same(tl.BitTensor(x) | y, x | y)
    same(tl.BitTensor(y) ^ x, x ^ y)


@pytest.mark.parametrize("shape", [(), (1,), (70,), (64, 65), (3, 5, 130), (2, 0, 66), (0,), (4, 0), (2, 3, 4, 5)])
def test_reductions_and_orders_of_axes(tier: str, shape: tuple[int, ...]) -> None:
    for density in DENSITIES:
        x = flags(shape, density)
        a = tl.BitTensor(x)
        rank = len(shape)
        for axis in [None, *range(-rank, rank), *([(0, rank - 1)] if rank > 1 else []), ()]:
            same(a.any(axis), x.any(axis=axis))
            same(a.all(axis), x.all(axis=axis))
            np.testing.assert_array_equal(a.sum(axis), x.sum(axis=axis))
    same(a.T, x.T)
    rng = np.random.default_rng(0)
    for _ in range(5):
        order = rng.permutation(rank).tolist()
        same(a.transpose(*order), x.transpose(order))
    if rank > 1:
        same(a.mT, x.swapaxes(-1, -2))
    same(a.reshape((x.size,)), x.reshape(-1))


def test_diagonal(tier: str) -> None:
    for n in (0, 1, 64, 65, 130):
        x = flags((2, n, n), 0.5)
        same(tl.BitTensor(x).diagonal(), np.diagonal(x, axis1=1, axis2=2))


def test_indexing(tier: str) -> None:
    x = flags((5, 6, 70))
    a = tl.BitTensor(x)
    for key in (
        0,
        -1,
        slice(1, 4),
        (2, slice(None, None, -1)),
        (slice(0, 0),),
        (1, 2),
        (..., 5),
        (slice(None), 1, slice(3, 69, 2)),
    ):
        same(a[key], x[key])
    assert a[1, 2, 3] is bool(x[1, 2, 3])
    same(a[x.any(axis=(1, 2))], x[x.any(axis=(1, 2))])
    assert len(a) == 5 and [row.shape for row in a] == [(6, 70)] * 5
    with pytest.raises(IndexError):
        a[5]


def test_it_does_not_change_and_says_what_it_is() -> None:
    a = tl.BitTensor(np.eye(70, dtype=bool))
    assert repr(a) == "BitTensor(shape=(70, 70), 70 set, 1.1 KiB)"
    assert (a.ndim, a.size, a.nbytes, a.dtype) == (2, 4900, 70 * 16, np.dtype(bool))
    with pytest.raises(ValueError, match="read-only"):
        a.words[0] = 1
    with pytest.raises(AttributeError):
        a.shape = (1,)  # type: ignore[misc]
    with pytest.raises(TypeError, match="unhashable"):
        hash(a)
    same(pickle.loads(pickle.dumps(a)), np.eye(70))
    assert tl.BitTensor(a) is a


def test_what_becomes_bits_and_what_does_not() -> None:
    same(tl.BitTensor([0.0, -0.0, np.nan, np.inf, 1e-300]), np.array([False, False, True, True, True]))
    same(tl.BitTensor(np.array([0, -1, 2], "int8")), np.array([False, True, True]))
    with pytest.raises(tl.DTypeError, match="bits cannot be made of <U1"):
        tl.BitTensor(["a"])
    assert np.asarray(tl.BitTensor([1, 0]), dtype="float32").tolist() == [1.0, 0.0]
    with pytest.raises(ValueError, match="without a copy"):
        np.asarray(tl.BitTensor([1]), copy=False)
    assert bool(tl.BitTensor(True)) and not tl.BitTensor([0])
    with pytest.raises(ValueError, match="neither true nor false"):
        bool(tl.BitTensor([1, 0]))
    with pytest.raises(TypeError, match="no length"):
        len(tl.BitTensor(True))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda a: a & np.ones((3, 3), bool), r"shapes \(3, 70\) and \(3, 3\)"),
        (lambda a: a.any(2), "axis 2 is not one of the 2"),
        (lambda a: a.any((0, -2)), "axis"),
        (lambda a: a.transpose(0, 0), "each of 2 axes once"),
        (lambda a: a.diagonal(), "square"),
        (lambda a: a[0].mT, "a matrix is needed"),
        (lambda a: a @ a, "index 'k' is 70 and 3"),
        (lambda a: a @ True, "write a & b"),
        (lambda a: tl.BitTensor.einsum("ij,ik,il->jkl", a, a, a), "one or two at a time"),
        (lambda a: tl.BitTensor.of(np.zeros((3, 1), np.uint64), (3, 70)), r"words of shape \(3, 2\)"),
    ],
)
def test_mistakes_are_named(call: Any, message: str) -> None:
    with pytest.raises(tl.TensorLogicError, match=message):
        call(tl.BitTensor(flags((3, 70))))


def test_an_executor_takes_it_as_an_input() -> None:
    b = tl.GraphBuilder()
    x = flags((4, 70))
    graph = b.build(y=b.logical_not(b.input("x", (4, 70), "bool")))
    np.testing.assert_array_equal(tl.Executor().execute(graph, {"x": tl.BitTensor(x)})["y"], ~x)


# contractions

EQUATIONS = """
i-> i->i ij-> ij->i ij->j ij->ji abc->cba abc->b ii->i ii-> ijj->i iji->j iij->ij ijij->ij iii->i i,i i,i-> i,i->i i,j->ij i,j->ji
i,j-> i,-> ,i ,ij->ij , ij,j ij,j->i ij,j->j ji,j ji,i-> ij,jk ij,jk->ki ij,kj->ik ji,jk->ik ij,ij->ij ij,ji-> ij,ij-> ij,kl->ijkl
ijk,jil->kl abc,bad->cd aab,bcc->ac ab,bcc->ac aab,abb->ab ...ij,...jk->...ik bij,bjk->ikb bij,bj->bi bij,bj->ib bij,bi->bj
ib,ib->b ijk,jkl->il ijk,jkl->li abcd,bcde->ae abcd,cbde->ea ij,i->ij ij,i->ji abij,bajk->kiab i,ij->j ij,i->j abi,ab->i
""".split()


def operands(equation: str, rng: Any) -> list[Any]:
    sizes = rng.choice([1, 2, 3, 5, 66], 26, p=[0.15, 0.2, 0.2, 0.15, 0.3])
    if len({c for c in equation if c.isalpha()}) < 4 and equation != "ijij->ij":
        sizes = rng.choice([1, 2, 63, 64, 65, 129], 26)
    found = []
    for part in equation.split("->")[0].split(","):
        shape: list[int] = []
        for label in part.replace("...", "."):
            shape += [2, 3] if label == "." else [int(sizes[ord(label) - 97])]
        found.append(rng.random(shape) < rng.choice([0.0, 0.02, 0.3, 1.0]))
    return found


@pytest.mark.parametrize("equation", EQUATIONS)
def test_contractions_are_numpys_einsum(tier: str, equation: str) -> None:
    rng = np.random.default_rng(len(equation))
    for _ in range(4):
        given = operands(equation, rng)
        same(tl.BitTensor.einsum(equation, *given), np.einsum(equation, *given))


def test_an_axis_of_nothing_gives_false() -> None:
    same(tl.BitTensor.einsum("ij,jk->ik", np.ones((3, 0)), np.ones((0, 70))), np.zeros((3, 70), bool))
    same(tl.BitTensor.einsum("ij,jk->ik", np.ones((0, 3)), np.ones((3, 70))), np.zeros((0, 70), bool))
    same(tl.BitTensor.einsum("Ij,jk->Ik".lower(), np.ones((2, 1)), np.ones((5, 4))), np.ones((2, 4), bool))


@pytest.mark.parametrize("sizes", [(65, 130, 64), (3, 200, 1100), (130, 70, 260), (1100, 3, 65), (1, 65, 1)])
@pytest.mark.parametrize("density", DENSITIES)
@pytest.mark.parametrize("batch", [(), (3,)])
def test_products_of_matrices(tier: str, sizes: tuple[int, int, int], density: float, batch: tuple[int, ...]) -> None:
    i, k, j = sizes
    x, y = flags((*batch, i, k), density, 1), flags((*batch, k, j), 0.05, 2)
    same(tl.BitTensor(x) @ tl.BitTensor(y), x @ y)
    same(tl.BitTensor.einsum("...ij,...j->...i", x, y[..., 0]), np.einsum("...ij,...j->...i", x, y[..., 0]))
    same(x[..., 0, :] @ tl.BitTensor(y) if not batch else tl.BitTensor(x) @ y, x[..., 0, :] @ y if not batch else x @ y)


def test_every_way_to_multiply_gives_the_same(many_threads: None) -> None:
    packed.load()
    from tensorlogic.backends.native import words

    for i, k, j in ((5, 3, 2), (70, 130, 300), (64, 1100, 1030), (33, 65, 129)):
        for density in (0.02, 0.4, 1.0):
            x, y = flags((i, k), density, 1), flags((k, j), density, 2)
            a, b = packed.pack(x)[None], packed.pack(y)[None]
            found = []
            for run in (words.table_or, partial(blocked, words.row_or, 1), partial(blocked, words.row_or, 1 << 20)):
                out = np.zeros((1, i, b.shape[2]), np.uint64)
                run(a, b, out, 0, 1, 0, i)
                found.append(packed.unpack(out[0], j))
            found.append(packed.unpack(packed.multiply(a, b)[0], j))
            for got in found:
                np.testing.assert_array_equal(got, x @ y)


def blocked(kernel: Any, block: int, *args: Any) -> None:
    kernel(*args, block)


def test_a_product_is_turned_where_the_second_factor_is_sparse(monkeypatch: pytest.MonkeyPatch) -> None:
    packed.load()
    x, y = flags((2000, 1900), 0.5, 1), flags((1900, 2050), 0.001, 2)
    turned: list[int] = []
    plain = packed.transpose
    monkeypatch.setattr(packed, "transpose", lambda w, n: (turned.append(1), plain(w, n))[1])
    same(tl.BitTensor(x) @ tl.BitTensor(y), x.astype("float32") @ y.astype("float32") > 0)
    assert len(turned) == 3


def test_products_add_to_what_is_there(tier: str) -> None:
    x, y, z = flags((66, 70), 0.05, 1), flags((70, 130), 0.05, 2), flags((66, 130), 0.05, 3)
    out = packed.pack(z)[None]
    packed.multiply(packed.pack(x)[None], packed.pack(y)[None], out)
    np.testing.assert_array_equal(packed.unpack(out[0], 130), (x @ y) | z)


# steps of plans


def plan_of(build: Any, inputs: dict[str, Any]) -> Any:
    b = tl.GraphBuilder()
    graph = b.build(**build(b, *(b.input(name, x.shape, x.dtype.name) for name, x in inputs.items())))
    return lay_out(specialized(graph, inputs))


def specialized(graph: tl.EinsumGraph, inputs: dict[str, Any]) -> tl.EinsumGraph:
    return specialize(graph, {k: tl.TensorType(tl.TensorShape(x.shape), x.dtype.name) for k, x in inputs.items()})


@pytest.mark.parametrize("equation", [e for e in EQUATIONS if "," in e])
def test_one_contraction_of_a_plan(equation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "SMALL", 0)
    rng = np.random.default_rng(7)
    given = operands(equation, rng)
    if rng.random() < 0.5:
        given = [np.asfortranarray(x) for x in given]
    for algebra in ("boolean", "real", "max_min", "max_product"):
        plan = plan_of(
            lambda b, *xs: {"y": b.einsum(equation, *xs, algebra=algebra)},  # noqa: B023
            {f"x{n}": x for n, x in enumerate(given)},
        )
        step = plan.steps[0]
        kernel = bind_bits(step.op, step.contraction, step.arg_types, step.types[0])
        labels = [set(own) for own in step.contraction.labels]
        if not labels[0] & labels[1] - set(step.contraction.spec.output):
            assert kernel is None
            continue
        expected = np.einsum(equation, *given)
        got = kernel(*given)
        assert type(got) is np.ndarray and got.dtype == np.bool_
        np.testing.assert_array_equal(got, expected)
        np.testing.assert_array_equal(kernel(*(tl.BitTensor(x) for x in given)), expected)
        out = np.ones(expected.shape, bool)
        assert kernel(*given, out=out) is out
        np.testing.assert_array_equal(out, expected)


def test_numbers_are_true_where_they_are_not_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "SMALL", 0)
    x = np.where(flags((70, 65), 0.1), np.nan, 0).astype("float32")
    y = flags((65, 66), 0.1).astype("int32") * -3
    step = plan_of(lambda b, x, y: {"z": b.einsum("ij,jk->ik", x, y, algebra="boolean")}, {"x": x, "y": y}).steps[0]
    got = bind_bits(step.op, step.contraction, step.arg_types, step.types[0])(x, y)
    np.testing.assert_array_equal(got, (x != 0) @ (y != 0))


def test_small_ones_and_other_algebras_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    x = flags((30, 30))
    for algebra in ("boolean", "min_max"):
        step = plan_of(lambda b, x: {"z": b.einsum("ij,jk->ik", x, x, algebra=algebra)}, {"x": x}).steps[0]  # noqa: B023
        assert bind_bits(step.op, step.contraction, step.arg_types, step.types[0]) is None
        monkeypatch.setattr(facts, "SMALL", 0)
    monkeypatch.setattr(support, "usable", lambda: False)
    step = plan_of(lambda b, x: {"z": b.einsum("ij,jk->ik", x, x, algebra="boolean")}, {"x": x}).steps[0]
    assert bind_bits(step.op, step.contraction, step.arg_types, step.types[0]) is None


def run_in_groups(graph: tl.EinsumGraph, inputs: dict[str, Any]) -> tuple[dict[str, Any], list[tuple[int, ...]]]:
    """Run a graph with its groups as single kernels and everything else on the reference backend."""
    from tensorlogic.backends.reference import define

    graph = specialized(graph, inputs)
    groups = [g.nodes for g in find_groups(graph, NativeFacts()) if g.kind == "bits"]
    plan = lay_out(graph)
    steps = {s.node: s for s in plan.steps}
    slots: dict[int, Any] = {slot: inputs[name] for name, slot, _ in plan.inputs}
    slots |= {slot: op.value if hasattr(op, "value") else graph.constants[op.digest] for slot, op in plan.constants}
    todo: list[tuple[int, ...]] = [*groups, *((i,) for i in steps if not any(i in g for g in groups))]
    while todo:  # whatever is ready runs; a cycle of groups would never end
        ready = [
            g for g in todo
            if all(r in slots or any(r in steps[j].writes for j in g) for i in g for r in steps[i].reads)
        ]  # fmt: skip
        assert ready, "groups wait for each other"
        for g in ready:
            todo.remove(g)
            own = [steps[i] for i in g]
            made = [s.writes[0] for s in own]
            if g in groups:
                reads = sorted({r for s in own for r in s.reads if r not in made})
                others = {r for s in plan.steps if s.node not in g for r in s.reads}
                writes = [w for w in made if w in others or any(w == slot for _, slot, _ in plan.outputs)]
                found = bind_bit_group(own, reads, writes)(*(slots[r] for r in reads))
                slots.update(zip(writes, [found] if len(writes) == 1 else found, strict=True))
            else:
                s = own[0]
                args = [np.asarray(slots[r]) for r in s.reads]
                slots[s.writes[0]] = define(s.op, args, s.arg_types, s.types, [])[0]
    return {name: slots[slot] for name, slot, _ in plan.outputs}, groups


def test_a_chain_of_rules_is_one_group() -> None:
    b = tl.GraphBuilder()
    x, y, z = (b.input(k, (120, 120), "bool") for k in "xyz")
    either = b.logical_or(x, y)
    join = b.einsum("ij,jk->ik", either, b.logical_not(z), algebra="boolean")
    graph = b.build(r=b.logical_and(join, b.transpose(x, (1, 0))), s=b.any(join, axis=1))
    inputs = {k: flags((120, 120), 0.03, n) for n, k in enumerate("xyz")}
    got, groups = run_in_groups(graph, inputs)
    assert len(groups) == 1 and len(groups[0]) == 5  # all but the transpose of an input, which is a view
    join = (inputs["x"] | inputs["y"]) @ ~inputs["z"]
    np.testing.assert_array_equal(got["r"], join & inputs["x"].T)
    np.testing.assert_array_equal(got["s"], join.any(axis=1))


def test_groups_do_not_wait_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "SMALL", 0)
    b = tl.GraphBuilder()
    x, w = b.input("x", (20, 20), "bool"), b.input("w", (20, 20), "bool")
    first = b.einsum("ij,jk->ik", x, w, algebra="boolean")
    counted = b.cast(b.sum(first, axis=0) > 3, "bool")  # leaves the words and comes back
    again = b.einsum("ij,jk->ik", b.logical_and(first, counted), w, algebra="boolean")
    graph = b.build(y=b.logical_or(again, first), z=b.logical_not(again))
    inputs = {"x": flags((20, 20), 0.2, 1), "w": flags((20, 20), 0.2, 2)}
    got, groups = run_in_groups(graph, inputs)
    first = inputs["x"] @ inputs["w"]
    again = (first & (first.sum(axis=0) > 3)) @ inputs["w"]
    np.testing.assert_array_equal(got["y"], again | first)
    np.testing.assert_array_equal(got["z"], ~again)
    assert groups and all(len(g) > 1 for g in groups)


def test_random_graphs_in_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "SMALL", 0)
    rng = np.random.default_rng(0)
    grouped = 0
    for _ in range(60):
        graph, inputs = random_graph(rng, int(rng.choice([3, 5, 8])))
        inputs = {name: inputs[name] for name in graph.inputs}
        got, groups = run_in_groups(graph, inputs)
        expected = tl.Executor(backend="reference").execute(graph, inputs)
        for name, value in got.items():
            np.testing.assert_array_equal(value, expected[name])
        grouped += len(groups)
    assert grouped > 40


def random_graph(rng: Any, n: int) -> tuple[tl.EinsumGraph, dict[str, Any]]:
    b = tl.GraphBuilder()
    square = [b.input(f"x{k}", (n, n), "bool") for k in range(3)]
    inputs = {f"x{k}": rng.random((n, n)) < rng.choice([0.1, 0.4]) for k in range(3)}
    for _ in range(14):
        x, y, z = (square[k] for k in rng.integers(0, len(square), 3))
        made = [
            lambda: b.einsum("ij,jk->ik", x, y, algebra="boolean"),  # noqa: B023
            lambda: b.einsum("ij,kj->ki", x, y, algebra="boolean"),  # noqa: B023
            lambda: b.logical_and(x, y),  # noqa: B023
            lambda: b.logical_or(x, b.transpose(y, (1, 0))),  # noqa: B023
            lambda: b.logical_xor(x, y),  # noqa: B023
            lambda: b.logical_not(x),  # noqa: B023
            lambda: b.maximum(x, b.any(y, axis=1, keepdims=True)),  # noqa: B023
            lambda: b.minimum(x, b.all(y, axis=0)),  # noqa: B023
            lambda: b.where(x, y, z),  # noqa: B023
            lambda: x <= y,  # noqa: B023
            lambda: b.logical_or(x, b.einsum("ii->i", y, algebra="boolean")),  # noqa: B023
            lambda: b.sum(x, axis=0) > b.sum(y, axis=1, keepdims=True),  # not on words  # noqa: B023
            lambda: b.logical_and(x, b.reshape(b.max(y, axis=1), (n, 1))),  # noqa: B023
            lambda: b.equal(x, b.broadcast_to(y[:1], (n, n))),  # noqa: B023
        ][rng.integers(0, 14)]()
        square.append(made)
    return b.build(a=square[-1], b=square[-3], c=square[-6]), inputs


def test_many_callers_at_once() -> None:
    x, y = flags((200, 300), 0.05, 1), flags((300, 250), 0.05, 2)
    a, b = tl.BitTensor(x), tl.BitTensor(y)
    step = plan_of(lambda b, x, y: {"z": b.einsum("ij,jk->ik", x, y, algebra="boolean")}, {"x": x, "y": y}).steps[0]
    kernel = bind_bits(step.op, step.contraction, step.arg_types, step.types[0])
    expected = x @ y
    with ThreadPoolExecutor(8) as pool:
        for got in [*pool.map(lambda _: kernel(x, y), range(40)), *pool.map(lambda _: np.asarray(a @ b), range(40))]:
            np.testing.assert_array_equal(got, expected)


# with and without numba


def in_a_new_process(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def test_few_bits_do_not_load_numba() -> None:
    code = "import sys, tensorlogic as tl; t = tl.BitTensor([[1, 0]]); t @ t.T; print('numba' in sys.modules)"
    assert in_a_new_process(code) == "False"


def test_many_bits_without_numba_are_as_right_with_one_warning() -> None:
    code = """
import sys, warnings
sys.modules["numba"] = None
import numpy as np, tensorlogic as tl
x, y = (np.random.default_rng(n).random((1100, 1100)) < 0.02 for n in (1, 2))
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    a, b = tl.BitTensor(x), tl.BitTensor(y)
    same = np.array_equal(a @ b, x.astype("float32") @ y.astype("float32") > 0)
    turned = np.array_equal(a.T, x.T)
print(same, turned, a.sum() == x.sum(), [w.category.__name__ for w in caught])
"""
    assert in_a_new_process(code) == "True True True ['NativeWarning']"


@pytest.mark.parametrize("shape", [(4096, 1100), (16, 1 << 18)])
def test_packing_numbers_on_eight_threads_takes_what_plans_count(
    monkeypatch: pytest.MonkeyPatch, measured: Any, shape: tuple[int, int]
) -> None:
    """Each thread copies pieces of its own; all of them together take the two that are counted."""
    packed.load()
    monkeypatch.setattr(packed, "allowed", lambda: 8)
    numbers = np.random.default_rng(0).integers(0, 2, shape, dtype=np.int8)
    packed.pack(numbers)  # kernels and threads are there
    meet, entered = threading.Barrier(8), threading.local()

    def flags(part: Any, words: Any) -> None:  # where the threads can, all come here before one goes on
        if not hasattr(entered, "once"):
            entered.once = True
            with contextlib.suppress(threading.BrokenBarrierError):
                meet.wait(0.5)
        pack_flags(part, words)

    pack_flags = packed._pack_flags
    monkeypatch.setattr(packed, "_pack_flags", flags)
    words, peak = measured(packed.pack, numbers)
    assert (packed.unpack(words, shape[1]) == numbers.astype(bool)).all()
    assert peak <= words.nbytes + 2 * max(packed.PIECE, shape[1]) + 50_000
