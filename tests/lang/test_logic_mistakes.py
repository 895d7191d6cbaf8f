"""What people get wrong in logic, and what they are told."""

import pickle
import time
import warnings
from enum import Enum, IntEnum
from functools import partial

import numpy as np
import pytest

import tensorlogic as tl
from tensorlogic import FormatError, GraphError, InputError


@pytest.mark.parametrize("given", [{"a", "b"}, frozenset({"a", "b"})])
def test_a_set_is_no_domain(given):
    with pytest.raises(GraphError, match="whose elements have no order") as caught:
        tl.CompilerContext({"P": given})
    assert caught.value.diagnostic.code == "E605"
    assert "sorted(p)" in caught.value.diagnostic.suggestions[0]
    tl.CompilerContext({"P": dict.fromkeys("ab").keys()})  # a dictionary's keys have an order


def test_a_mapping_is_no_domain():
    places = {"alice": 2, "bob": 0, "carol": 1}
    with pytest.raises(GraphError, match="domain 'Person' is a mapping, of which only the keys are names") as caught:
        tl.CompilerContext(domains={"Person": places})
    assert "list(person)" in str(caught.value)
    assert tl.CompilerContext(domains={"Person": places.keys()}).index("Person", "alice") == 0


def test_a_domain_may_be_an_array_of_names():
    context = tl.CompilerContext({"P": np.array(["ann", "bob"]), "N": np.array(4)})
    assert context.names("P") == ("ann", "bob")
    assert context.size("N") == 4


@pytest.mark.parametrize(
    "given", [np.array("bob"), np.array(3.5), np.array(None), np.array([0.5, 1.5]), np.array([["a"]])]
)
def test_other_arrays_are_no_domain(given):
    with pytest.raises(GraphError, match=r"domain 'P' is a (size or a )?list of names, got") as caught:
        tl.CompilerContext({"P": given})
    assert caught.value.diagnostic.code == "E301"


@pytest.mark.parametrize("library", ["torch", "jax.numpy"])
def test_a_domain_may_be_an_array_of_another_library(library):
    module = pytest.importorskip(library)
    numbers = module.arange(3)
    context = tl.CompilerContext({"P": numbers})
    assert context.names("P") == ("0", "1", "2")
    assert tl.show(np.array([True, False, True]), numbers) == tl.show(np.array([True, False, True]), ["0", "1", "2"])
    for wrong in (module.ones((2, 2)), module.ones(2)):
        with pytest.raises(GraphError, match="domain 'P' is a size or a list of names, got"):
            tl.CompilerContext({"P": wrong})
    with pytest.raises(InputError, match="a domain is a size or a list of names"):
        tl.show(np.eye(2), module.ones((2, 2)))


@pytest.mark.parametrize("given", [{"P", "Q"}, frozenset({"P", "Q"})])
def test_a_set_is_no_signature(given):
    with pytest.raises(GraphError, match="'s' are a set, whose elements have no order") as caught:
        tl.CompilerContext({"P": 2, "Q": 3}, predicates={"s": given})
    assert caught.value.diagnostic.code == "E605"
    assert "('P', 'Q')" in caught.value.diagnostic.suggestions[0]


def test_a_signature_is_a_list_of_names():
    for given in (np.array(["P", "Q"]), ["P", "Q"], {"P": 1, "Q": 2}.keys()):
        assert tl.CompilerContext({"P": 2, "Q": 3}, predicates={"s": given}).predicates == {"s": ("P", "Q")}
    for wrong in (np.array("P"), np.array([["P", "Q"]]), 3, [3], [["P"]]):
        with pytest.raises(GraphError, match="domains of predicate 's' are a list of names, got"):
            tl.CompilerContext({"P": 2, "Q": 3}, predicates={"s": wrong})


def test_titles_of_columns_have_an_order():
    assert tl.show(np.eye(2), heads=np.array(["aa", "bb"])).heads == ["aa", "bb", "value"]
    for given in ({"aa", "bb"}, frozenset({"aa", "bb"})):
        with pytest.raises(InputError, match="heads= is a set, whose elements have no order") as caught:
            tl.show(np.eye(2), heads=given)
        assert caught.value.diagnostic.code == "E605"
    for wrong in (np.array("aa"), np.array([["aa", "bb"]]), np.array([1, 2]), 3.5, None, "ab"):
        with pytest.raises(InputError, match="heads= is a list of titles, one for each axis, got"):
            tl.show(np.eye(2), heads=wrong)


@pytest.mark.parametrize("size", [0, 3])
@pytest.mark.parametrize(
    ("strategy", "one"), [("hard_boolean", True), ("soft_differentiable", 3.0), ("fuzzy_godel", 1.0)]
)
def test_exists_something_that_is_itself(size, strategy, one):
    y = tl.variables("y", domain="D")
    graph = tl.compile(tl.exists(y, tl.same(y, y)), tl.CompilerContext({"D": size}), strategy=strategy)
    assert tl.Executor().execute(graph, {})[0] == (one if size else 0)


def test_for_all_and_free_variables_that_are_themselves():
    x, y = tl.variables("x y", domain="D")
    ex, context = tl.Executor(), tl.CompilerContext({"D": 3})
    assert ex.execute(tl.compile(tl.forall(y, tl.same(y, y)), context), {})[0]
    assert ex.execute(tl.compile(tl.same(x, x), context), {})[0].tolist() == [True] * 3
    assert not ex.execute(tl.compile(tl.exists(y, ~tl.same(y, y)), context), {})[0]


def test_one_equation_under_quantifiers_of_two_domains():
    x, y = tl.variables("x y")
    equation = tl.same(x, y)
    both = tl.exists(tl.variables("x y", domain="A"), equation) & tl.exists(tl.variables("x y", domain="B"), equation)
    graph = tl.compile(both, tl.CompilerContext({"A": 2, "B": 3}))
    assert tl.Executor().execute(graph, {})[0]


def test_text_that_is_no_expression_is_shown():
    with pytest.raises(FormatError, match="cannot read the expression") as caught:
        tl.compile("p(x) &", tl.CompilerContext({"P": 3}))
    assert "p(x) &" in str(caught.value)


@pytest.mark.parametrize("strategy", [["a"], {}, None, 3])
def test_a_strategy_of_the_wrong_kind(strategy):
    with pytest.raises(GraphError, match="there is no strategy"):
        tl.compile(tl.pred("p"), tl.CompilerContext({}), strategy=strategy)


@pytest.mark.parametrize("text", ["p(x) > {}", "p({})", "p(-{})", "p(x) > -{}"])
def test_numbers_of_thousands_of_digits(text):
    with pytest.raises(FormatError, match="a number of 5,000 digits is too long"):
        tl.parse_expr(text.format("9" * 5000))
    assert tl.parse_expr("p(x) > " + "9" * 300).args[1].value == int("9" * 300)


def test_many_variables_are_read_in_linear_time():
    def seconds(count: int) -> float:
        text = " & ".join(f"p(x{n})" for n in range(count))
        start = time.process_time()
        tl.parse_expr(text)
        return time.process_time() - start

    seconds(100)
    assert min(seconds(8000) for _ in range(3)) < 32 * min(seconds(1000) for _ in range(3))


def test_scores_are_checked_on_request():
    context = tl.CompilerContext({"P": 2})
    context.check_scores({"p": [0, 1], "q": np.array([True]), "r": np.array([0.5])})
    with pytest.raises(InputError, match=r"score -3.5 of 'p' at \[0, 1\] is outside of 0 to 1 \(2 are\)") as caught:
        context.check_scores({"p": [[0.0, -3.5], [2.0, 1.0]]})
    assert caught.value.diagnostic.code == "E622"
    with pytest.raises(InputError, match="score nan"):
        context.check_scores({"p": [np.nan]})
    for given in (None, [1], {"p": ["a"]}, {"p": [[1], [1, 2]]}):
        with pytest.raises(tl.TensorLogicError, match=r"by the names|numbers or truth values|rectangular"):
            context.check_scores(given)


@pytest.mark.parametrize("strategy", list(tl.STRATEGIES))
def test_the_first_run_warns_of_scores_once(strategy, tmp_path):
    x = tl.variables("x", domain="P")
    graph = tl.compile(tl.pred("p", x) | ~tl.pred("q", x), tl.CompilerContext({"P": 2}), strategy=strategy)
    bad = {"p": np.array([0.5, -3.5]), "q": np.array([0.0, 1.0])}
    graph.save(tmp_path / "rule.json")
    executor = tl.Executor()
    runs = {
        "plain": lambda: executor.execute(graph, bad),
        "compiled": partial(executor.compile_graph(graph), bad),
        "loaded": lambda: tl.Executor().execute(tl.EinsumGraph.load(tmp_path / "rule.json"), bad),
        "read": lambda: tl.Executor().execute(tl.EinsumGraph.from_text(graph.to_text()), bad),
        "pickled": lambda: tl.Executor().execute(pickle.loads(pickle.dumps(graph)), bad),
        "batch": lambda: tl.Executor().execute_batch(graph, [bad, bad]),
        "jit": lambda: tl.Executor().execute_jit(graph, bad),
    }
    fuzzy = strategy not in ("hard_boolean", "soft_differentiable")  # one takes any number as true, the other counts
    for road, run in runs.items():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            run()
        found = [str(w.message) for w in caught]
        assert found == ["score -3.5 of 'p' at [1] is outside of 0 to 1 (1 are); the logic takes such numbers as they are, or refuses them"] * fuzzy, road  # fmt: skip
        assert all(w.filename == __file__ for w in caught)
    executor.execute(graph, bad)  # a second warning would be an error here


def scored():
    """Return the graph of a rule over rows, and inputs that are right."""
    x = tl.variables("x", domain="P")
    rule = tl.compile(tl.pred("p", x) | tl.pred("q", x), tl.CompilerContext({"P": 2}), strategy="fuzzy_godel")
    return rule, {"p": np.array([0.5, 1.0]), "q": np.array([0.0, 1.0])}


def told(run):
    """Return the warnings of a run, all of which point here."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run()
    assert all(w.filename == __file__ and w.category is tl.LogicWarning for w in caught)
    return [str(w.message).split(" is outside")[0] for w in caught]


@pytest.mark.parametrize("place", [0, 1, 39])
@pytest.mark.parametrize("road", ["execute_batch", "execute_batch_parallel"])
def test_the_first_batch_warns_of_the_scores_of_any_item(road, place):
    graph, right = scored()
    items = [{"p": right["p"].copy(), "q": right["q"]} for _ in range(40)]
    items[place] = {"p": np.array([0.5, -3.5]), "q": right["q"]}
    executor = tl.Executor()
    executor.optimal_batch_size(graph, most=4, seconds=0.1)  # on inputs that are made up
    assert told(lambda: getattr(executor, road)(graph, items)) == [f"item {place}: score -3.5 of 'p' at [1]"]
    assert told(lambda: getattr(executor, road)(graph, items)) == []
    items[5] = {"p": [2.0, 0.0], "q": np.array([0.0, 1.0, 0.5])}  # fails alone
    items[7] = {"p": [0, 1], "q": [0, 7]}  # of another kind
    found = told(lambda: getattr(tl.Executor(), road)(graph, items))
    assert sorted(found) == sorted([f"item {place}: score -3.5 of 'p' at [1]", "score 7 of 'q' at [1]"])


def test_a_batch_does_not_look_again(monkeypatch):
    graph, right = scored()
    executor = tl.Executor()
    executor.execute_batch(graph, [right, {**right, "p": right["p"].copy()}])
    monkeypatch.setattr(type(executor.programs), "look_at_scores", None)
    executor.execute_batch(graph, [right, {**right, "p": right["p"].copy()}])
    rows = tl.batched(graph.with_scores(()), over=["p", "q"])
    many = {name: np.stack([value] * 4) for name, value in right.items()}
    executor.execute_stream(rows, many).result()
    executor.execute_distributed(rows, many, tl.DistributedConfig([tl.Device.CPU(0), tl.Device.CPU(1)]))


@pytest.mark.parametrize("whole", ["", "q"])
def test_the_first_chunk_of_a_stream_is_looked_at(whole):
    graph, right = scored()
    rows = tl.batched(graph, over=[name for name in ("p", "q") if name != whole])
    given = {name: value if name == whole else np.stack([value] * 6) for name, value in right.items()}
    given["p"][3, 0] = 2.0
    given["q"] = given["q"] - 1
    chunks = [{name: given[name][i : i + 2] for name in given if name != whole} for i in (0, 2, 4)]
    config = tl.StreamingConfig(tl.StreamingMode.FixedChunk(4))
    inputs = {whole: given[whole]} if whole else {}
    executor, streamed = tl.Executor(), {name: given[name] for name in given if name != whole}
    first = ["chunk 0: score 2.0 of 'p' at [3, 0]", "score -1.0 of 'q' at [0]" if whole else "chunk 0: score -1.0 of 'q' at [0, 0]"]  # fmt: skip
    assert told(lambda: executor.execute_stream(rows, streamed, config, inputs=inputs).result()) == first
    assert told(lambda: executor.execute_stream(rows, streamed, config, inputs=inputs).result()) == []
    small = tl.StreamingConfig(tl.StreamingMode.FixedChunk(2))
    assert told(lambda: tl.Executor().execute_stream(rows, iter(chunks), small, inputs=inputs).result()) == first[1:]


def test_the_first_distributed_run_is_looked_at():
    graph, right = scored()
    rows = tl.batched(graph, over=["p", "q"])
    given = {name: np.stack([value] * 4) for name, value in right.items()}
    given["p"][3, 0] = np.nan
    config = tl.DistributedConfig([tl.Device.CPU(0), tl.Device.CPU(1)])
    executor = tl.Executor()
    assert told(lambda: executor.execute_distributed(rows, given, config)) == ["score nan of 'p' at [3, 0]"]
    assert told(lambda: executor.execute_distributed(rows, given, config)) == []


def test_scores_in_bfloat16_are_looked_at_too():
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    graph, right = scored()
    given = {"p": np.array([0.5, 2.0], bfloat16), "q": right["q"].astype(bfloat16)}
    items = [{"p": given["p"].copy(), "q": given["q"]} for _ in range(3)]
    assert told(lambda: tl.Executor().execute(graph, given)) == ["score 2.0 of 'p' at [1]"]
    assert told(lambda: tl.Executor().execute_batch(graph, items)) == ["item 0: score 2.0 of 'p' at [1]"]


def test_gradients_keep_the_names_of_scores():
    graph, right = scored()
    wrong = {**right, "p": np.array([0.5, -3.5])}
    back = tl.vjp(graph, ["p"])
    assert back.scores == graph.scores == {"p", "q"}
    assert told(lambda: tl.Executor().execute(back, {**wrong, "d_result": np.ones(2)})) == ["score -3.5 of 'p' at [1]"]
    b = tl.GraphBuilder()
    p, q = b.input("p", (2,)), b.input("q", (2,))
    loss = b.build(loss=b.sum(p * q)).with_scores(["p"])
    gradient = tl.grad(loss)
    clipped = tl.clip_by_norm(gradient, 1.0)
    for made in (gradient, tl.value_and_grad(loss), clipped, tl.recompute(gradient, loss)):
        assert made.scores == {"p"}
        assert told(lambda made=made: tl.Executor().execute(made, wrong)) == ["score -3.5 of 'p' at [1]"]


def test_tangents_keep_the_names_of_scores():
    graph, right = scored()
    ahead = tl.jvp(graph, ["p"])
    assert ahead.scores == {"p", "q"}
    given = {**right, "p": np.array([0.5, -3.5]), "t_p": np.array([7.0, -7.0])}
    assert told(lambda: tl.Executor().execute(ahead, given)) == ["score -3.5 of 'p' at [1]"]


def test_forward_runs_warn_of_scores():
    graph, right = scored()
    executor, wrong = tl.Executor(), {**right, "p": np.array([0.5, -3.5])}
    assert told(lambda: executor.forward(graph, wrong)) == ["score -3.5 of 'p' at [1]"]
    assert told(lambda: executor.forward(graph, wrong)) == []


def test_right_scores_and_those_of_no_rule_are_not_warned_of():
    x = tl.variables("x", domain="P")
    context = tl.CompilerContext({"P": 2}, graphs={"p": _scaled()})
    graph = tl.compile(tl.pred("p", x) & tl.pred("q", x), context, strategy="fuzzy_godel")
    assert graph.scores == {"q"}  # what a classifier reads is no truth value
    executor = tl.Executor()
    executor.execute(graph, {"image": np.array([-3.0, 5.0]), "q": np.array([0, 1])})
    # of inputs of another kind, the first run is looked at too
    with pytest.warns(tl.LogicWarning, match="score 2 of 'q' at"):
        executor.execute(graph, {"image": np.array([-3.0, 5.0]), "q": np.array([0, 2], "int8")})


def _scaled() -> tl.EinsumGraph:
    b = tl.GraphBuilder()
    return b.build(score=b.sigmoid(b.input("image", (2,))))


def test_show_of_several_outputs_and_of_a_mapping():
    x = tl.variables("x", domain="P")
    rules = [tl.Rule(tl.pred("a", x), tl.pred("p", x)), tl.Rule(tl.pred("b", x), ~tl.pred("p", x))]
    graph = tl.compile(rules, tl.CompilerContext({"P": ["ann", "bob"]}))
    out = tl.Executor().execute(graph, {"p": np.array([True, False])})
    assert tl.show(out, ["ann", "bob"], heads=["x"]) == "a\nx\nann\n1 of 2\n\nb\nx\nbob\n1 of 2"
    assert tl.show({"a": np.array([True, False])}, ["ann", "bob"]) == "axis 0\nann\n1 of 2"


def test_show_of_several_arrays_shows_each():
    eye = np.eye(2)
    table = "axis 0  axis 1\n0       0\n1       1\n2 of 4"
    assert (
        tl.show((eye, eye > 0))
        == f"0\naxis 0  axis 1  value\n0       0       1\n1       1       1\n2 of 4\n\n1\n{table}"
    )
    assert tl.show([eye > 0]) == table
    assert tl.show([[1, 0], [0, 1]]) == tl.show(eye), "a nested list of numbers is one array"
    assert tl.show([np.float64(1), np.float64(2)]).rows == [["1", "2"], ["0", "1"]]
    b = tl.GraphBuilder()
    x = b.input("x", (2, 2))
    graph, executor = b.build(y=x, total=b.sum(x)), tl.Executor()
    shown = tl.show(executor.execute_batch(graph, [{"x": eye}, {"x": eye + 1}]))
    assert list(shown.parts) == ["0 y", "0 total", "1 y", "1 total"]
    with pytest.raises(tl.ShapeError, match="output 'total': 2 domains for an answer of 0 axes"):
        tl.show(executor.execute(graph, {"x": eye}), ["a", "b"], ["c", "d"])


@pytest.mark.parametrize("above", ["a", None, np.nan, [0.5]])
def test_show_above_what_is_no_number(above):
    with pytest.raises(InputError, match="above= is a number, got"):
        tl.show(np.eye(2), above=above)
    assert tl.show(np.eye(2), above=np.float32(1)).rows == []


class Colour(Enum):
    RED = 1
    BLUE = 2


class Word(str, Enum):  # noqa: UP042 - whose text is not its value
    YES = "yes"
    NO = "no"


class Level(IntEnum):
    LOW = 5
    HIGH = 6


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ([np.array(0), np.array(1)], ("0", "1")), ([np.str_("a"), np.int64(3), 4], ("a", "3", "4")), (range(2), ("0", "1")),
        (Colour, ("RED", "BLUE")), (list(Word), ("yes", "no")), (list(Level), ("5", "6")), (np.array(["a", 1], object), ("a", "1")),
    ],
)  # fmt: skip
def test_names_of_a_domain(given, names):
    context = tl.CompilerContext(domains={"P": given})
    assert context.names("P") == names
    assert [context.index("P", m) for m in given] == list(range(len(names)))


def test_names_of_a_domain_in_arrays_of_torch():
    torch = pytest.importorskip("torch")
    assert tl.CompilerContext(domains={"P": list(torch.arange(2))}).names("P") == ("0", "1")
    assert tl.show(np.array([True, False]), list(torch.arange(2))).rows == [["0"]]


@pytest.mark.parametrize(
    "given", [[None, "a"], [{"a", "b"}], [["a", "b"]], [b"a"], np.array([b"a"]), [1.5], [float("nan")], [True, False]]
)
def test_what_is_no_name_of_a_domain(given):
    with pytest.raises(GraphError, match="element 0 of domain 'P' is no name: ") as caught:
        tl.CompilerContext(domains={"P": given})
    assert caught.value.diagnostic.code in ("E774", "E775")


@pytest.mark.parametrize("strategy", ["fuzzy_product", "fuzzy_lukasiewicz"])
def test_a_score_that_a_logic_refuses_is_named_with_its_place(strategy):
    context = tl.CompilerContext(domains={"P": 3})
    graph = tl.compile("exists y. likes(x, y) & knows(y, z)", context, strategy=strategy)
    likes = np.zeros((3, 3))
    likes[1, 2] = -3.5
    with pytest.warns(tl.LogicWarning), pytest.raises(InputError) as caught:
        tl.Executor().execute(graph, {"likes": likes, "knows": np.ones((3, 3))})
    found = caught.value.diagnostic
    assert found.message.startswith(
        "score -3.5 of 'likes' at [1, 2] is outside of 0 to 1 (1 are): a factor is -3.5; the "
    )
    assert found.code == "E622"
    assert "scale or clip the scores" in found.suggestions[0]
    with pytest.raises(GraphError, match="a factor is"):  # of other graphs nobody knows whose score it is
        tl.Executor().execute(graph.with_scores(()), {"likes": likes, "knows": np.ones((3, 3))})


@pytest.mark.parametrize("value", [(np.eye(2), np.array(["a"])), ["a", "b"], None, [1j]])
def test_show_of_what_is_no_answer(value):
    with pytest.raises(tl.DTypeError, match="expected"):
        tl.show(value)


def test_show_of_unsigned_scores():
    shown = tl.show(np.array([3, 0, 7, 7], np.uint8), 4, above=-1)
    assert shown == "axis 0  value\n2       7\n3       7\n0       3\n1       0\n4 of 4"


@pytest.mark.parametrize("domain", [{"ann", "bob"}, frozenset(["ann", "bob"]), None, 2.0, "ab", True, np.array("ab")])
def test_show_takes_names_in_order_or_a_size(domain):
    with pytest.raises(tl.InputError, match="a domain is"):
        tl.show(np.eye(2, dtype=bool), domain)


def test_show_takes_sizes_of_numpy_and_names_that_are_made_as_they_are_read():
    answer = np.array([True, False])
    assert tl.show(answer, np.int64(2)) == tl.show(answer, 2)
    assert (
        tl.show(answer, (n for n in ["ann", "bob"]))
        == tl.show(answer, np.array(["ann", "bob"]))
        == tl.show(answer, ["ann", "bob"])
    )


def test_show_without_domains_numbers_every_axis():
    answer = np.array([[False, True, False]])
    assert tl.show(answer) == tl.show(answer, 1, 3)
    assert "axis 0  axis 1" in tl.show({"a": answer}) and tl.show(np.float64(2.5)) == "2.5"


def test_show_keeps_several_outputs_apart():
    one, other = np.array([[0.5, 0.0]]), np.array([0.25, 0.0])
    shown = str(tl.show({"one": one, "other": other}))
    assert shown == f"one\n{tl.show(one)}\n\nother\n{tl.show(other)}"
    assert tl.show({"one": one}) == tl.show(one)
