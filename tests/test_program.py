"""Programs from Python: facts in, names out, what is kept and what is computed again, files, threads, mistakes."""

import pickle
import threading

import numpy as np
import pytest

import tensorlogic as tl

FAMILY = """Parent(Bob, Charlie)
            Ancestor(x,y) <- Parent(x,y)
            Ancestor(x,z) <- Ancestor(x,y), Parent(y,z)"""
PATH = "Path(x,y) <- Edge(x,y); Path(x,z) <- Path(x,y), Edge(y,z)"


def family():
    p = tl.Program(FAMILY)
    p.add("Parent", [("Alice", "Bob")])
    return p


def runs(program):
    """Count the runs of the program's executor from here on."""
    count = []
    executor = program.executor
    execute = executor.execute

    def counted(*args, **options):
        count.append(args)
        return execute(*args, **options)

    executor.execute = counted
    return count


def test_what_a_user_types():
    p = family()
    assert p.query("Ancestor(Alice, x)?") == [("Bob",), ("Charlie",)]
    ancestors = p.relation("Ancestor")
    assert (len(ancestors), ("Alice", "Charlie") in ancestors, ("Bob", "Alice") in ancestors) == (3, True, False)
    assert ancestors.dense().sum() == ancestors.bits().sum() == ancestors.sparse().count == 3
    assert p.query("Ancestor(Alice, x)?").to_pandas()["x"].tolist() == ["Bob", "Charlie"]


@pytest.mark.parametrize("computed", [False, True])
@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("Ancestor(Alice, x)?", {("Bob",), ("Charlie",)}),
        ("Ancestor(Alice, x)", {("Bob",), ("Charlie",)}),
        ("Ancestor(x, Charlie)?", {("Alice",), ("Bob",)}),
        ("Ancestor(Alice, Charlie)?", {()}),
        ("Ancestor(Charlie, Alice)?", set()),
        ("Ancestor(Zoe, x)?", set()),
        ("Ancestor(x, x)?", set()),
        ("Ancestor(x, _)?", {("Alice",), ("Bob",)}),
        ("Ancestor(x, y)?", {("Alice", "Bob"), ("Alice", "Charlie"), ("Bob", "Charlie")}),
        ("Ancestor?", {("Alice", "Bob"), ("Alice", "Charlie"), ("Bob", "Charlie")}),
        ("Ancestor(Alice, x), Parent(x, y)?", {("Bob", "Charlie")}),
        ("Ancestor(x, y), not Parent(x, y)?", {("Alice", "Charlie")}),
        ("Ancestor(x, y), x != Alice?", {("Bob", "Charlie")}),
        ("Parent(Alice, x)?", {("Bob",)}),
        ("Parent(x, x)?", set()),
    ],
)
def test_queries(query, expected, computed):
    p = family()
    if computed:
        p.relation("Ancestor")
    found = p.query(query)
    assert set(found) == expected
    assert len(found) == len(expected)


def test_a_query_may_join_domains_that_the_program_does_not():
    p = tl.Program("Likes(Ann, Rome); City(Rome); Person(Ann); Person(Rome)")
    assert p.query("Person(x), City(x)?") == [("Rome",)]
    assert p.query("Likes(x, x)?") == []
    p.add("Likes", [("Rome", "Rome")])
    assert p.query("Likes(x, x)?") == [("Rome",)]


def test_numbers_answer_with_values():
    p = tl.Program("Age(Ann, 30); Age(Bob, 7); Count[x] count= Age(x,n); X = [1, 2, 4]; Y = X[i]; M[i,j] = X[i] X[j]")
    assert p.query("X[i]?") == [(0, 1.0), (1, 2.0), (2, 4.0)]
    assert p.query("Y?").value == 7
    assert p.query("M[1,j]?") == [(0, 2.0), (1, 4.0), (2, 8.0)]
    assert p.query("M[i,i]?").array().tolist() == [1, 4, 16]
    assert p.query("M?").array().shape == (3, 3)
    assert p.query("Count[x]?") == [("Ann", 1), ("Bob", 1)]
    assert p.query("Older(x)?") == [] if "Older" in p.run() else True


def test_facts_of_every_kind_meet_in_one_domain(tmp_path):
    (tmp_path / "edges.csv").write_text("b,c\n")
    p = tl.Program(PATH)
    p.add("Edge", [("a", "b")])
    p.add("Edge", tmp_path / "edges.csv")
    p.add("Edge", np.array([["c", "d"]]))
    assert len(p.query("Path(a, x)?")) == 6  # a lower-case word is a variable
    assert p.query('Path("a", x)?') == [("b",), ("c",), ("d",)]
    assert p.names("Edge") == ["a", "b", "c", "d"]


def test_arrays_are_places_of_the_domain():
    p = tl.Program("Person(Ann); Person(Bob); R(x) <- Likes(x,y), Person(x), Person(y)")
    p.add("Likes", np.array([[False, True], [False, False]]))
    assert list(p.relation("Likes")) == [("Ann", "Bob")]
    with pytest.raises(tl.InputError):
        p.add("Likes", np.zeros((3, 3), bool))
    q = tl.Program("R(x) <- Edge(x,y)")
    q.add("Edge", tl.SparseTensor([[0, 1], [0, 0]]))
    assert q.relation("R").dense().tolist() == [True, False]


def test_adding_computes_once_what_depends_on_it():
    p = family()
    p.relation("Ancestor")
    count = runs(p)
    assert p.query("Ancestor(Alice, x)?") == [("Bob",), ("Charlie",)]
    assert not count  # it is there
    p.add("Parent", [("Charlie", "Dora"), ("Alice", "Bob")])
    assert set(p.relation("Ancestor")) == {
        ("Alice", "Bob"), ("Alice", "Charlie"), ("Alice", "Dora"), ("Bob", "Charlie"), ("Bob", "Dora"), ("Charlie", "Dora"),
    }  # fmt: skip
    assert len(count) == 1


def test_retracting_computes_only_what_depends_on_it():
    p = tl.Program(FAMILY + "\nLikes(Ann, Bob); Fond(x) <- Likes(x,y)")
    p.add("Parent", [("Alice", "Bob")])
    assert (len(p.relation("Ancestor")), len(p.relation("Fond"))) == (3, 1)
    count = runs(p)
    assert p.retract("Parent", [("Bob", "Charlie"), ("Zoe", "Zed")]) == 1
    assert len(p.relation("Fond")) == 1
    assert not count
    assert list(p.relation("Ancestor")) == [("Alice", "Bob")]
    assert p.retract("Parent", [("Bob", "Charlie")]) == 0
    p.add("Parent", [("Bob", "Charlie")])
    assert len(p.relation("Ancestor")) == 3
    assert p.retract("Parent", [("Alice", "Bob"), ("Bob", "Charlie")]) == 2
    assert list(p.relation("Ancestor")) == []


def test_negation_is_not_gone_on_with():
    p = tl.Program(PATH + "\nNode(x) <- Edge(x,y); Node(y) <- Edge(x,y); Apart(x,y) <- Node(x), Node(y), not Path(x,y)")
    p.add("Edge", [(1, 2), (3, 4)])
    assert (2, 3) in p.relation("Apart")
    p.add("Edge", [(2, 3)])
    assert (1, 4) not in p.relation("Apart")
    assert (4, 1) in p.relation("Apart")


def test_random_changes_agree_with_a_fresh_program():
    rng = np.random.default_rng(3)
    p = tl.Program(PATH + "\nEnd(y) <- Path(x,y), not Start(y); Start(x) <- Edge(x,y)")
    edges = set()
    for _ in range(25):
        rows = [tuple(r) for r in rng.integers(0, 12, (int(rng.integers(1, 4)), 2)).tolist()]
        if rng.random() < 0.6:
            p.add("Edge", rows)
            edges |= set(rows)
        else:
            assert p.retract("Edge", rows) == len(edges & set(rows)) if edges else True
            edges -= set(rows)
        fresh = tl.Program(PATH + "\nEnd(y) <- Path(x,y), not Start(y); Start(x) <- Edge(x,y)")
        fresh.add("Edge", sorted(edges))
        for name in ("Path", "End", "Start") if edges else ():
            assert set(p.relation(name)) == set(fresh.relation(name)), (name, edges)


def test_rules_may_be_added_later():
    p = family()
    assert len(p.relation("Ancestor")) == 3
    p.add_rule("Child(y,x) <- Parent(x,y)")
    assert p.query("Child(x, Alice)?") == [("Bob",)]
    p.rule("Parent(Charlie, Dora)")
    assert len(p.relation("Ancestor")) == 6


def test_inputs_of_runs():
    p = tl.Program("Y[i] = W[i,j] X[j]")
    w, x = np.arange(6.0).reshape(2, 3), np.ones(3)
    assert p.run(W=w, X=x)["Y"].tolist() == [3, 12]
    assert p.run({"W": w * 2, "X": x})["Y"].tolist() == [6, 24]
    assert p.bind(W=w).run(X=x[:3])["Y"].tolist() == [3, 12]
    assert p.run(X=x * 2)["Y"].tolist() == [6, 24]
    assert p.run(W=np.ones((1, 2)), X=np.ones(2))["Y"].tolist() == [2]
    first, second = p.run(X=x), p.run(X=x * 3)
    assert (first["Y"].tolist(), second["Y"].tolist()) == ([3, 12], [9, 36])
    with pytest.raises(tl.InputError) as caught:
        tl.Program("Y[i] = W[i,j] X[j]").run(W=w, Z=x)
    assert caught.value.diagnostic.code == "E785"


def test_functions_are_attached():
    p = tl.Program("X = [1, 2]").attach("double", lambda x: x + x)
    p.add_rule("Y[i] = double(X[i])")
    assert p.run()["Y"].tolist() == [2, 4]
    with pytest.raises(tl.FormatError):
        p.save("nowhere")


def test_files_are_read_and_written_when_asked(tmp_path):
    (tmp_path / "parents.csv").write_text("Alice,Bob\nBob,Carol\n")
    (tmp_path / "family.tl").write_text(
        'Parent(x,y) = "parents.csv"\nOld(x,z) <- Parent(x,y), Parent(y,z)\n"out.tsv" = Old(x,z)\n"out.npy" = Old(x,z)\nOld(x,z)?\n'
    )
    p = tl.load(tmp_path / "family.tl")
    assert p.answers() == {"Old(x, z)?": [("Alice", "Carol")]}
    assert not (tmp_path / "out.tsv").exists()
    assert [path.name for path in p.write_files()] == ["out.tsv", "out.npy"]
    assert (tmp_path / "out.tsv").read_text(encoding="utf-8") == "Alice\tCarol\n"
    assert np.load(tmp_path / "out.npy").sum() == 1
    (tmp_path / "parents.csv").write_text("Alice,Bob\nBob\n")
    with pytest.raises(tl.FormatError) as caught:
        tl.load(tmp_path / "family.tl").query("Old(x,z)?")
    assert caught.value.diagnostic.location.line == 2


@pytest.mark.parametrize("form", ["folder", "family.tl"])
def test_saved_programs_have_the_same_answers_and_names(tmp_path, form):
    p = tl.Program(FAMILY + '\nLikes(Alice, "a b"); Likes(Bob, 7); Likes(Bob, "7"); Ancestor(Charlie, x)?')
    p.add("Parent", [("Alice", "Bob")])
    p.save(tmp_path / form)
    q = tl.load(tmp_path / form)
    for name in ("Parent", "Ancestor", "Likes"):
        assert set(p.relation(name)) == set(q.relation(name))
    if form == "folder":
        assert (p.names("Parent"), p.names("Likes", 1)) == (q.names("Parent"), q.names("Likes", 1))
        np.testing.assert_array_equal(p.relation("Ancestor").dense(), q.relation("Ancestor").dense())
        bound = tl.Program("Y[i] = W[i]").bind(W=np.arange(3.0))
        bound.save(tmp_path / "bound")
        assert tl.load(tmp_path / "bound").run()["Y"].tolist() == [0, 1, 2]
        (tmp_path / "folder" / "program.json").write_text("{}")
        with pytest.raises(tl.FormatError) as caught:
            tl.load(tmp_path / "folder")
        assert caught.value.diagnostic.code == "E792"


def test_prolog_files(tmp_path):
    (tmp_path / "c.pl").write_text("near(a, b). near(b, c). linked(X, Y) :- near(X, Y).\n")
    assert tl.load(tmp_path / "c.pl").query("linked(x, y)?") == [("a", "b"), ("b", "c")]


def test_programs_print():
    p = family().bind()
    assert str(p).splitlines() == [
        "Ancestor(x, y) <- Parent(x, y)", "Ancestor(x, z) <- Ancestor(x, y), Parent(y, z)",
        "Parent(Bob, Charlie)", "Parent(Alice, Bob)",
    ]  # fmt: skip
    assert repr(p) == "<Program of 2 rules and equations, 2 facts>"
    assert "Ancestor" in str(p.plan())
    assert p.graph("Ancestor").output_names == ["Ancestor"]
    assert tl.Program(str(p)).query("Ancestor(Alice, x)?") == [("Bob",), ("Charlie",)]
    many = tl.Program("R(x) <- E(x)")
    many.add("E", range(100))
    assert str(many).endswith("# 80 more facts of E")
    assert "2 answers" in str(p.query("Ancestor(Alice, x)?"))


def test_pickling_is_refused():
    with pytest.raises(tl.InputError, match="save"):
        pickle.dumps(family())


def test_threads_ask_together():
    p = tl.Program(PATH)
    p.add("Edge", [(n, n + 1) for n in range(30)])
    found, errors = [], []

    def ask(n):
        try:
            found.append(len(p.query(f"Path({n}, x)?")) == 30 - n and len(p.relation("Path")) == 465)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors
    assert all(found)


@pytest.mark.parametrize(
    ("call", "code", "said"),
    [
        (lambda p: p.query("Ancester(x, y)?"), "E785", "did you mean 'Ancestor'?"),
        (lambda p: p.query("Ancestor(x)?"), "E778", "has 2 places, but the query has 1"),
        (lambda p: p.query("P(x) <- Q(x)"), None, ""),
        (lambda p: p.query(3), "E301", "a query is text"),
        (lambda p: p.relation("Nobody"), "E785", "no relation or tensor 'Nobody'"),
        (lambda p: p.relation("N"), "E790", "holds numbers"),
        (lambda p: p.add("Parent", [("a", "b", "c")]), "E778", "row 1 has 3"),
        (lambda p: p.add("Parent", [("a", None)]), "E774", "missing"),
        (lambda p: p.add(3, []), "E301", "named by text"),
        (lambda p: p.retract("Ancestor", [("Bob", "Charlie")]), "E788", "follows from rules"),
        (lambda p: tl.Program("", executor="numpy"), "E301", "runs on an executor"),
        (lambda p: p.retract("Nobody", [("a",)]), "E785", "Nobody"),
        (lambda p: p.bind(Nobody=3).run(), "E785", "no tensor 'Nobody'"),
        (lambda p: p.run(N="text"), "E779", "cannot be made of"),
        (lambda p: p.attach("f", 3), "E301", "a function"),
        (lambda p: p.attach("a b", len), "E789", "plain name"),
        (lambda p: p.names("Parent", 5), "E784", "none is number 5"),
        (lambda p: p.add_rule('"out.xyz" = Parent(x,y)'), "E771", "known are"),
        (lambda p: tl.load("nothing.tl"), "E770", "does not exist"),
        (lambda p: tl.Program(3), "E301", "a program is text"),
    ],
)
def test_mistakes(call, code, said):
    p = tl.Program(FAMILY + "\nN = 3")
    with pytest.raises(tl.TensorLogicError) as caught:
        call(p)
    assert code in (None, caught.value.diagnostic.code)
    assert said in str(caught.value)


def test_what_does_not_fit_is_not_added():
    p = family()
    with pytest.raises(tl.TensorLogicError):
        p.add("Parent", [("a", 1.5)])
    assert p.query("Ancestor(Alice, x)?") == [("Bob",), ("Charlie",)]
    q = tl.Program("Y[x] = R(x) W[x]").bind(W=np.ones(2))
    q.add("R", ["a", "b"])
    with pytest.raises(tl.TensorLogicError):
        q.add("R", ["c"])
    assert q.run()["Y"].tolist() == [1, 1]


def test_empty_programs_and_relations():
    assert list(tl.Program("").run()) == []
    p = tl.Program(PATH)
    for ask in (lambda: p.query("Path(1, x)?"), lambda: p.relation("Path"), lambda: p.query("Path(x, y)?")):
        with pytest.raises(tl.InputError) as caught:
            ask()
        assert caught.value.diagnostic.code == "E786"
    p.add("Edge", [])
    assert len(p.relation("Path")) == 0
    assert p.query("Path(1, x)?") == []
    p.add("Edge", [(1, 2)])
    assert list(p.relation("Path")) == [(1, 2)]
    q = tl.Program("Rain(); Wet() <- Rain()")
    assert bool(q.query("Wet()?"))
    assert q.retract("Rain", [()]) == 1
    assert not q.query("Wet()?")
