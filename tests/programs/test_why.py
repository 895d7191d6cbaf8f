"""Proofs: every one is checked step by step and against brute force; what is printed; depth, size and speed."""

import itertools
import json
import operator
import random
import re
import time
from pathlib import Path

import numpy as np
import pytest

import tensorlogic as tl
from tensorlogic.lang import syntax as s
from tensorlogic.lang.grammar import parse
from tensorlogic.programs import prover

SIGNS = {"!=": operator.ne, "<": operator.lt, "<=": operator.le, "=": operator.eq, ">": operator.gt}

FAMILY = """Parent(Alice, Bob)
Parent(Bob, Charlie)
Ancestor(x,y) <- Parent(x,y)
Ancestor(x,z) <- Ancestor(x,y), Parent(y,z)
Person(x) <- Parent(x,_); Person(x) <- Parent(_,x)
Leaf(x) <- Person(x), not Parent(x,_)
Age(Alice, 70); Age(Bob, 40); Age(Charlie, 9)
Older(x,y) <- Age(x,m), Age(y,n), m > n + 10
Kids[x] count= Parent(x,y)
Busy(x) <- Person(x), Kids[x] > 0
Any() <- Leaf(x)
"""


@pytest.fixture
def family():
    p = tl.Program(FAMILY, file="family.tl")
    p.add("Parent", [("Charlie", "Dan")])
    return p


# random programs, as tuples: (head, body); an atom is (name, terms); variables are text, constants numbers


def instances(rule, universe):
    """Go through the ground instances of a rule; blanks of negated atoms stay."""
    head, body = rule
    names = sorted({t for kind, *rest in body if kind == "atom" for t in rest[1] if isinstance(t, str)})
    for row in itertools.product(universe, repeat=len(names)):
        env = dict(zip(names, row, strict=True))
        yield env, (head[0], tuple(env.get(t, t) for t in head[1])), [ground(x, env) for x in body]


def ground(literal, env):
    kind, name, *terms = literal
    if kind == "compare":
        return (kind, name, *(env.get(t, t) for t in terms))
    return (kind, name, tuple(env.get(t, t) for t in terms[0]))


def true(literal, model):
    kind, name, *rest = literal
    if kind == "compare":
        return SIGNS[name](*rest)
    found = any(fits(rest[0], row) for row in model.get(name, ()))
    return found if kind == "atom" else not found


def fits(terms, row):
    env = {}
    return all(
        t == v or t == "_" or (isinstance(t, str) and env.setdefault(t, v) == v)
        for t, v in zip(terms, row, strict=True)
    )


def brute_force(facts, rules, universe):
    """Return what holds, and of each atom the least height of a proof and the fewest facts of such proofs, as a tree."""
    model = {}
    for name, row in facts:
        model.setdefault(name, set()).add(row)
    ground_rules = [i for rule in rules for i in instances(rule, universe)]
    for level in "PQR":  # what is negated is below
        grown = True
        while grown:
            grown = False
            for _, (name, row), body in ground_rules:
                if name <= level and row not in model.get(name, ()) and all(true(x, model) for x in body):
                    model.setdefault(name, set()).add(row)
                    grown = True
    best = dict.fromkeys(facts, (0, 1))
    for height in itertools.count(1):
        found = {}
        for _, head, body in ground_rules:
            below = [(name, row) for kind, name, *rest in body if kind == "atom" for row in rest]
            if head in best or not all(b in best for b in below) or not all(true(x, model) for x in body):
                continue
            size = sum(best[b][1] for b in below)
            found[head] = min(found.get(head, (height, size)), (height, size))
        best |= found
        if not found:
            return model, best


def random_program(seed):
    """Return facts and rules with recursion, constants, repeated variables, negation and comparisons."""
    rng = random.Random(seed)
    universe = range(4)
    arity = {"E": 2, "F": 1, "P": 2, "Q": rng.choice([1, 2]), "R": rng.choice([0, 1, 2, 3])}
    facts = {("E", (rng.choice(universe), rng.choice(universe))) for _ in range(6)}
    facts |= {("F", (rng.choice(universe),)) for _ in range(2)}
    if rng.random() < 0.5:  # a relation may have facts and rules
        facts.add(("P", (rng.choice(universe), rng.choice(universe))))
    rules = [(("P", ("x", "y")), [("atom", "E", ("x", "y"))])]
    for head in "PPQQRR":
        lower = [n for n in "EFPQR" if n <= head]
        body = []
        for _ in range(rng.choice([1, 2, 2, 3])):
            name = rng.choice(lower)
            body.append(("atom", name, tuple(rng.choice(["x", "y", "z", "y", 1]) for _ in range(arity[name]))))
        bound = sorted({t for _, _, terms in body for t in terms if isinstance(t, str)})
        if not bound:
            continue
        if rng.random() < 0.4:
            name = rng.choice([n for n in "EFPQ" if n < head and (n in "EF" or n != head)])
            body.append(("not", name, tuple(rng.choice([*bound, 2, "_"]) for _ in range(arity[name]))))
        if rng.random() < 0.4:
            body.append(("compare", rng.choice(list(SIGNS)), rng.choice(bound), rng.choice([*bound, 2])))
        rules.append(((head, tuple(rng.choice([*bound, *bound, 0]) for _ in range(arity[head]))), body))
    return sorted(facts), rules, universe


def written(facts, rules):
    def atom(name, terms):
        return f"{name}({','.join(map(str, terms))})"

    def literal(x):
        kind, name, *rest = x
        if kind == "compare":
            return f"{rest[0]} {name} {rest[1]}"
        return ("not " if kind == "not" else "") + atom(name, rest[0])

    lines = [atom(*f) for f in facts]
    return "\n".join([*lines, *(f"{atom(*h)} <- {', '.join(map(literal, b))}" for h, b in rules)])


def atom_of(text):
    (query,) = parse(text.removeprefix("not ") + "?").statements
    [tensor] = query.body
    return tensor.name, tuple(_term(p.index) for p in tensor.places)


def _term(index):
    if isinstance(index, s.Variable):
        return "_" if index.name[0] == "_" else index.name
    return index.value


def check_proof(proof, facts, rules, universe, model):
    """Check each step by itself, and return the number of facts of the tree."""
    texts = {written([], [rule]).replace(" ", ""): rule for rule in rules}
    sizes = {}
    for n in reversed(proof._above):
        step = proof.steps[n]
        below = [proof.steps[b] for b in step.because]
        match step.kind:
            case "fact":
                assert atom_of(step.atom) in facts
                sizes[n] = 1
            case "absent":
                assert true(("not", *atom_of(step.atom)), model)
                sizes[n] = 0
            case "compared":
                left, sign, right = step.atom.split()
                assert SIGNS[sign](int(left), int(right))
                sizes[n] = 0
            case "rule":
                rule = texts[step.rule.replace(" ", "")]
                shown = [_shown(b) for b in below]
                assert any(
                    head == atom_of(step.atom) and body == shown for _, head, body in instances(rule, universe)
                ), step
                sizes[n] = sum(sizes[b] for b in step.because)
    return sizes[0]


def _shown(step):
    if step.kind == "compared":
        left, sign, right = step.atom.split()
        return ("compare", sign, int(left), int(right))
    return ("not" if step.kind == "absent" else "atom", *atom_of(step.atom))


@pytest.mark.parametrize("seed", range(40))
def test_proofs_of_random_programs(seed):
    facts, rules, universe = random_program(seed)
    model, best = brute_force(facts, rules, universe)
    p = tl.Program(written(facts, rules))
    derived = {head[0] for head, _ in rules}
    assert {n: set(p.relation(n)) for n in derived} == {n: model.get(n, set()) for n in derived}
    atoms = sorted(a for a in best if a[0] in derived)
    for name, row in random.Random(seed).sample(atoms, min(25, len(atoms))):
        proof = p.why(f"{name}({','.join(map(str, row))})")
        size = check_proof(proof, facts, rules, universe, model)
        assert (proof.height, size) == best[name, row]
        assert json.loads(proof.to_json())["height"] == proof.height


@pytest.mark.parametrize("seed", range(20))
def test_what_is_missing_in_random_programs(seed):
    facts, rules, universe = random_program(seed)
    model, _ = brute_force(facts, rules, universe)
    p = tl.Program(written(facts, rules))
    for name, arity in sorted({(h[0], len(h[1])) for h, _ in rules}):
        rows = [r for r in itertools.product(universe, repeat=arity) if r not in model.get(name, ())]
        for row in rows[:12]:
            found = p.why_not(f"{name}({','.join(map(str, row))})")
            assert found and not found.holds
            for attempt in found.attempts:  # some literal is missing, and what is said to hold or to be missing is so
                assert attempt.missing
                for text in attempt.holds:
                    assert true(_literal(text), model), found
                for missing in attempt.missing:
                    if re.search(r"[xyz] [<=>!]|[<=>] [xyz]", missing.literal):  # holds for no value
                        continue
                    assert not true(_literal(missing.literal), model), found
            counts = [len(a.missing) for a in found.attempts]
            assert counts == sorted(counts)


def _literal(text):
    sign = re.search(r" (<=|!=|<|=|>) ", text)
    if sign:
        left, right = text.split(sign.group())
        return ("compare", sign.group(1), int(left), int(right))
    name, terms = atom_of(text)
    return ("not" if text.startswith("not ") else "atom", name, terms)


def test_the_fewest_missing_literals_are_found():
    p = tl.Program("A(1); B(2); C(2); D(3)\nGoal(x) <- A(x), B(y), C(y), D(y)")
    found = p.why_not("Goal(1)").attempts[0]
    assert found.holds == ("A(1)", "B(2)", "C(2)")
    assert [m.literal for m in found.missing] == ["D(2)"]


# what is printed


def test_a_proof_prints_as_a_tree(family):
    assert str(family.why("Ancestor(Alice, Dan)")) == (
        "Ancestor(Alice, Dan)  by Ancestor(x, z) <- Ancestor(x, y), Parent(y, z)  (family.tl:4)\n"
        "├─ Ancestor(Alice, Charlie)  by Ancestor(x, z) <- Ancestor(x, y), Parent(y, z)  (family.tl:4)\n"
        "│  ├─ Ancestor(Alice, Bob)  by Ancestor(x, y) <- Parent(x, y)  (family.tl:3)\n"
        "│  │  └─ Parent(Alice, Bob)  fact  (family.tl:1)\n"
        "│  └─ Parent(Bob, Charlie)  fact  (family.tl:2)\n"
        "└─ Parent(Charlie, Dan)  fact, added from Python"
    )


@pytest.mark.parametrize(
    ("goal", "lines"),
    [
        ("Parent(Charlie, Dan)", ["Parent(Charlie, Dan)  fact, added from Python"]),
        (
            "Older(Alice, Bob)",
            [
                "Older(Alice, Bob)  by Older(x, y) <- Age(x, m), Age(y, n), m > n + 10  (family.tl:8)",
                "├─ Age(Alice, 70)  fact  (family.tl:7)",
                "├─ Age(Bob, 40)  fact  (family.tl:7)",
                "└─ 70 > 40 + 10",
            ],
        ),
        (
            "Busy(Bob)",
            [
                "Busy(Bob)  by Busy(x) <- Person(x), Kids[x] > 0  (family.tl:10)",
                "├─ Person(Bob)  by Person(x) <- Parent(x, _)  (family.tl:5)",
                "│  └─ Parent(Bob, Charlie)  fact  (family.tl:2)",
                "└─ Kids[Bob] > 0  Kids[Bob] = 1, of Parent(Bob, Charlie)",
            ],
        ),
        (
            "Any()",
            [
                "Any()  by Any() <- Leaf(x)  (family.tl:11)",
                "└─ Leaf(Dan)  by Leaf(x) <- Person(x), not Parent(x, _)  (family.tl:6)",
                "   ├─ Person(Dan)  by Person(x) <- Parent(_, x)  (family.tl:5)",
                "   │  └─ Parent(Charlie, Dan)  fact, added from Python",
                "   └─ not Parent(Dan, _)  no such fact",
            ],
        ),
    ],
)
def test_what_proofs_say(family, goal, lines):
    assert str(family.why(goal)).splitlines() == lines


@pytest.mark.parametrize(
    ("goal", "lines"),
    [
        (
            "Ancestor(Charlie, Alice)",
            [
                "Ancestor(x, z) <- Ancestor(x, y), Parent(y, z)  (family.tl:4)",
                "  holds    Ancestor(Charlie, Dan)",
                "  missing  Parent(Dan, Alice)  no such fact",
                "Ancestor(x, y) <- Parent(x, y)  (family.tl:3)",
                "  missing  Parent(Charlie, Alice)  no such fact",
            ],
        ),
        (
            "Leaf(Bob)",
            [
                "Leaf(x) <- Person(x), not Parent(x, _)  (family.tl:6)",
                "  holds    Person(Bob)",
                "  missing  not Parent(Bob, _)  there is Parent(Bob, Charlie)",
            ],
        ),
        (
            "Older(Bob, Alice)",
            [
                "Older(x, y) <- Age(x, m), Age(y, n), m > n + 10  (family.tl:8)",
                "  holds    Age(Bob, 40)",
                "  holds    Age(Alice, 70)",
                "  missing  40 > 70 + 10",
            ],
        ),
        (
            "Busy(Dan)",
            [
                "Busy(x) <- Person(x), Kids[x] > 0  (family.tl:10)",
                "  holds    Person(Dan)",
                "  missing  Kids[Dan] > 0  Kids[Dan] = 0",
            ],
        ),
        (
            "Parent(Alice, Dan)",
            [
                "Parent has no rules, and there is no such fact",
                "but there is Parent(Alice, Bob)",
                "but there is Parent(Charlie, Dan)",
            ],
        ),
        (
            "Ancestor(Zoe, Alic)",
            [
                "'Zoe' is no name that the program knows",
                "'Alic' is no name that the program knows; did you mean 'Alice'?",
            ],
        ),
    ],
)
def test_what_is_missing(family, goal, lines):
    found = family.why_not(goal)
    assert str(found).splitlines() == [f"{goal} does not hold", *lines]
    assert found and not json.loads(found.to_json())["holds"]


def test_names_that_stand_elsewhere():
    p = tl.Program("Parent(Alice, Bob)\nAncestor(x,y) <- Parent(x,y), Parent(x,_)\nRoot(Alice, x) <- Parent(Alice, x)")
    assert str(p.why_not("Ancestor(Bob, Alice)")).splitlines()[1:] == [
        "Ancestor(x, y) <- Parent(x, y), Parent(x, _)  (line 2)",
        "  missing  Parent(Bob, Alice)  no such fact",
        "  missing  Parent(Bob, _)  no such fact",
    ]
    assert str(p.why_not("Root(Bob, Bob)")).splitlines()[1:] == [
        "Root has no rule whose head fits, and there is no such fact"
    ]
    assert str(p.why_not("Parent(Bob, Alice)")).splitlines()[1:] == [
        "Parent has no rule whose head fits, and there is no such fact"
    ]


def test_what_holds_is_not_refuted(family):
    found = family.why_not("Ancestor(Alice, Charlie)")
    assert not found
    assert str(found) == 'Ancestor(Alice, Charlie) holds\np.why("Ancestor(Alice, Charlie)") says why'


@pytest.mark.parametrize(
    ("method", "text", "code", "said"),
    [
        ("why", "Ancestor(Dan, Alice)", "E793", "Ancestor(Dan, Alice) does not hold"),
        ("why", "Ancestor(Zoe, Alice)", "E793", 'p.why_not("Ancestor(Zoe, Alice)")'),
        ("why", "Ancestor(x, Dan)", "E793", "has variables"),
        ("why", "Ancestor(x, Dan), Leaf(x)", "E793", "one atom"),
        ("why", "Ancestor(Dan)", "E778", "2 place"),
        ("why_not", "Ancstor(Dan, Bob)", "E785", "did you mean 'Ancestor'?"),
        ("why_not", "Kids[Bob]", "E793", 'p.why("Kids[Bob]")'),
        ("why", "Kids[x]", "E793", "one element"),
        ("why", "Kids[Zoe]", "E777", "no element"),
    ],
)
def test_questions_that_have_no_answer(family, method, text, code, said):
    with pytest.raises(tl.TensorLogicError) as caught:
        getattr(family, method)(text)
    assert caught.value.diagnostic.code == code
    assert said in str(caught.value)


def test_pictures(family):
    proof = family.why("Leaf(Dan)")
    dot, mermaid = proof.to_dot(), proof.to_mermaid()
    assert dot.startswith("digraph Proof {") and dot.count("->") == 3
    assert mermaid.startswith("flowchart BT") and mermaid.count("-->") == 3
    assert "Parent(Charlie, Dan)" in proof._repr_html_()
    assert "no such fact" in dot


def test_pictures_of_what_is_missing():
    p = tl.Program("Parent(Ann, Bob); Old(Ann)\nElder(x) <- Parent(x,y), Old(y), x != Ann\nElder(x) <- Chief(x)")
    p.add("Chief", [])
    found = p.why_not("Elder(Ann)")
    dot, mermaid = found.to_dot(), found.to_mermaid()
    assert dot.count("->") == mermaid.count("-->") == len(found.drawn_steps()) - 1
    assert "Elder(Ann)\\ndoes not hold" in dot and "tried  (line 3)" in mermaid and "Chief(Ann)" in mermaid
    assert "does not hold" in found._repr_html_()
    assert p.why_not("Old(Ann)").to_dot().count("holds") == 1  # it does


def test_facts_of_files_have_their_line_or_row(tmp_path):
    tables = pytest.importorskip("pyarrow.parquet")
    (tmp_path / "parents.csv").write_text("Ann,Bob\nBob,Cid\n")
    p = tl.Program("Old(x) <- Parent(x,y)")
    p.add("Parent", tmp_path / "parents.csv")
    [fact] = p.why("Old(Bob)").facts
    assert (fact.at.file, fact.at.line, fact.note) == (str(tmp_path / "parents.csv"), 2, "")
    assert str(p.why("Old(Bob)")).endswith("parents.csv:2)")
    tables.write_table(pytest.importorskip("pyarrow").table({"x": ["Dan"], "y": ["Eve"]}), tmp_path / "more.parquet")
    p.add("Parent", tmp_path / "more.parquet")
    assert str(p.why("Old(Dan)")).endswith("more.parquet, row 1)")


def test_a_step_that_is_needed_twice_is_proved_once():
    p = tl.Program("E(1,2)\nA(x) <- E(x,y); B(x) <- A(x), A(x); C(x) <- A(x), B(x)")
    proof = p.why("C(1)")
    assert len(proof) == 4 and proof.height == 3
    assert str(proof).count("as above") == 2


# other kinds of rules


@pytest.mark.parametrize(
    ("text", "goal", "height"),
    [
        ("E(0,1); E(1,2); E(2,3)\nOdd(x,y) <- E(x,y); Odd(x,z) <- Even(x,y), E(y,z); Even(x,z) <- Odd(x,y), E(y,z)", "Odd(0, 3)", 3),
        ("N(0); Top(5); N(y) <- N(x), y = x + 1, Top(t), y <= t", "N(4)", 4),
        ("E(0,1); E(3,0)\nHead(x+1, y) <- E(x, y), x < 3", "Head(1, 1)", 1),
        ("E(0,2); E(3,0)\nShift(x) <- E(x+1, y), E(_, x)", "Shift(2)", 1),
        ("E(0,1); E(1,0)\nR(x) = E(x,y) E(y,x)", "R(1)", 1),
        ("L = 2; E(1,2)\nP(x) <- E(x, L)", "P(1)", 1),
        ('E("a b", 3)\nP(x) <- E(x, y), y = 3', 'P("a b")', 1),
        ("E(A,B)\nP(x, Zoe) <- E(x, x); P(x, Zoe) <- E(x, y)", "P(A, Zoe)", 1),
        ("Raining()\nWet() <- Raining()\nSlow() <- Wet(), not Dry(); Dry() <- Wet(), not Raining()", "Slow()", 2),
    ],
)  # fmt: skip
def test_other_rules(text, goal, height):
    proof = tl.Program(text).why(goal)
    assert proof.height == height
    assert all(step.kind in ("rule", "fact", "absent", "compared") for step in proof.steps)


def test_tensors_in_rules():
    p = tl.Program(
        "S[x] = Emb[x,d] V[d]\nGood(x) = step(S[x] - 0.5)\nFine(x) <- S[x] > 0.5, Person(x)\nNice(x) <- Good(x), Person(x)\nPerson(0); Person(1)"
    )
    p.bind(Emb=np.array([[1.0, 2.0], [0.0, 0.1]]), V=np.array([0.5, 1.0]))
    assert str(p.why("Fine(0)")).splitlines()[1] == "├─ S[0] > 0.5  S[0] = 2.5"
    assert (
        str(p.why("Nice(0)")).splitlines()[1] == "├─ Good(0)  by Good(x) = step(S[x] - 0.5)  (line 2): the score is 2"
    )
    assert str(p.why_not("Good(1)")).splitlines()[1].endswith("gives nothing there: the score is -0.4")
    assert p.why_not("Fine(1)").attempts[0].missing[0].note == "S[1] = 0.1"


# numbers


def test_contributions_of_a_sum():
    p = tl.Program("Y[i] = W[i,j] X[j]")
    w, x = np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([5.0, -6.0])
    found = p.bind(W=w, X=x).why("Y[1]")
    assert float(found) == -9
    by = {c.element: (c.value, c.gradient, c.contribution) for c in found.contributions}
    assert by == {"W[1, 0]": (3, 5, 15), "W[1, 1]": (4, -6, -24), "X[0]": (5, 3, 15), "X[1]": (-6, 4, -24)}
    order = [abs(c.contribution) for c in found.contributions]
    assert order == sorted(order, reverse=True)
    assert sum(c.contribution for c in found.contributions if c.element[0] == "W") == -9
    assert json.loads(found.to_json())["value"] == -9


def test_contributions_are_gradients_of_the_program():
    rng = np.random.default_rng(0)
    w, x = rng.normal(size=(3, 4)), rng.normal(size=4)
    p = tl.Program("H[i] = tanh(W[i,j] X[j]); Y = sig(H[i])").bind(W=w, X=x)
    step = 1e-6
    for c in p.why("Y").contributions[:6]:
        name, at = c.element[0], tuple(int(n) for n in re.findall(r"\d+", c.element))
        moved = {"W": w.copy(), "X": x.copy()}
        moved[name][at] += step
        slope = (p.run(**moved)["Y"].item() - p.run(W=w, X=x)["Y"].item()) / step
        assert slope == pytest.approx(c.gradient, rel=1e-3, abs=1e-6)


def test_the_path_of_a_shortest_distance():
    inf = np.inf
    p = tl.Program("Dist[y] min= Start[y]\nDist[y] min= Dist[x] + Cost[x,y]")
    p.bind(Start=np.array([0, inf, inf]), Cost=np.array([[inf, 2.0, 9], [inf, inf, 3], [inf, inf, inf]]))
    found = p.why("Dist[2]")
    assert found.value == 5
    assert {c.element for c in found.contributions} == {"Cost[0, 1]", "Cost[1, 2]"}


def test_the_path_of_a_likeliest_answer():
    p = tl.Program("Rel[y] max= Start[y]\nRel[y] max= Rel[x] P[x,y]")
    p.bind(Start=np.array([1.0, 0, 0]), P=np.array([[0, 0.9, 0.5], [0, 0, 0.8], [0, 0, 0]]))
    found = p.why("Rel[2]")
    assert found.value == pytest.approx(0.72)
    assert {c.element for c in found.contributions} == {"Start[0]", "P[0, 1]", "P[1, 2]"}


def test_facts_contribute_to_numbers(family):
    p = tl.Program("Edge(A,B); Edge(A,C); Edge(B,C)\nDeg[x] += Edge(x,y); N[x] count= Edge(x,y)")
    assert {c.element for c in p.why("Deg[A]").contributions} == {"Edge(A, B)", "Edge(A, C)"}
    assert p.why("N[A]").group == ("Edge(A, B)", "Edge(A, C)")
    assert str(p.why("N[A]")) == "N[A] = 2  by N[x] count= Edge(x, y)  (line 2)\ncounted: Edge(A, B), Edge(A, C)"


# depth and size


@pytest.mark.parametrize("rule", ["Path(x,y), Edge(y,z)", "Edge(x,y), Path(y,z)"])
def test_a_chain_of_ten_thousand(rule):
    n = 10_000
    p = tl.Program(f"Path(x,y) <- Edge(x,y); Path(x,z) <- {rule}")
    p.add("Edge", np.stack([np.arange(n), np.arange(1, n + 1)], 1))
    proof = p.why(f"Path(0, {n})")
    assert proof.height == n and len(proof.facts) == n
    assert "more steps" in str(proof) and len(str(proof)) < 20_000
    assert len(proof.to_dict()["steps"]) == 2 * n
    assert proof.to_dot().count("->") == 2 * n - 1


def test_doubling_halves_the_height():
    p = tl.Program("Path(x,y) <- Edge(x,y); Path(x,z) <- Path(x,y), Path(y,z)")
    p.add("Edge", np.stack([np.arange(32), np.arange(1, 33)], 1))
    proof = p.why("Path(0, 32)")
    assert proof.height == 6 and len(proof.facts) == 32


def test_a_hundred_thousand_edges():
    import networkx as nx

    edges = np.random.default_rng(0).integers(0, 20_000, (100_000, 2))
    p = tl.Program("Path(x,y) <- Edge(x,y); Path(x,z) <- Path(x,y), Edge(y,z)")
    p.add("Edge", edges)
    start = time.process_time()
    proof = p.why("Path(0, 777)")
    assert time.process_time() - start < 60
    assert proof.height == nx.shortest_path_length(nx.DiGraph(edges.tolist()), 0, 777)


@pytest.mark.parametrize("seed", range(20))
def test_proofs_by_rounds(seed, monkeypatch):
    """What is too much for the search is proved by the engine's rounds: proofs of the same height."""
    monkeypatch.setattr(prover, "MOST_STEPS", -1)
    facts, rules, universe = random_program(seed)
    model, best = brute_force(facts, rules, universe)
    p = tl.Program(written(facts, rules))
    atoms = sorted(a for a in best if a[0] in {head[0] for head, _ in rules})
    for name, row in random.Random(seed).sample(atoms, min(6, len(atoms))):
        proof = p.why(f"{name}({','.join(map(str, row))})")
        assert check_proof(proof, facts, rules, universe, model) >= best[name, row][1]
        assert proof.height == best[name, row][0]


def test_many_ways_to_derive_are_left_to_the_engine(monkeypatch):
    monkeypatch.setattr(prover, "MOST_STEPS", 1000)
    p = tl.Program("Path(x,y) <- Edge(x,y); Path(x,z) <- Path(x,y), Path(y,z)")
    p.add("Edge", np.stack([np.arange(64), np.arange(1, 65)], 1))
    proof = p.why("Path(0, 64)")
    assert proof.height == 7 and len(proof.facts) == 64
    with pytest.raises(tl.TensorLogicError, match="does not hold"):
        p.why("Path(3, 0)")
    assert "Path(3, 0) does not hold" in str(p.why_not("Path(3, 0)"))


# the command line


def test_commands(tmp_path):
    from click.testing import CliRunner

    from tensorlogic.cli import main

    (tmp_path / "family.tl").write_text(FAMILY)
    (tmp_path / "net.tl").write_text("Y[i] = W[i,j] X[j]; W = [[1, 2], [3, 4]]")
    family, net = str(tmp_path / "family.tl"), str(tmp_path / "net.tl")

    def said(*words, code=0):
        done = CliRunner().invoke(main, list(words))
        assert done.exit_code == code, done.output
        return done.output

    assert said("why", family, "Ancestor(Alice, Charlie)").splitlines()[2].startswith("│  └─ Parent(Alice, Bob)  fact")
    assert "family.tl:1)" in said("why", family, "Parent(Alice, Bob)", "--all")
    assert json.loads(said("why", family, "Ancestor(Alice, Charlie)", "--json"))["height"] == 2
    assert said("why", family, "Leaf(Charlie)", "--format", "mermaid").startswith("flowchart")
    assert "does not hold" in said("why", family, "Ancestor(Charlie, Alice)", code=1)
    assert "missing" in said("why-not", family, "Ancestor(Charlie, Alice)")
    assert json.loads(said("why-not", family, "Leaf(Bob)", "--json"))["holds"] is False
    assert "W[1, 0]" in said("why", net, "Y[1]", "-i", "X=[5, 6]")
    said("why", net, "Y[1]", "-i", "X=[5, 6]", "--format", "dot", code=2)


def test_functions_in_comparisons_are_those_of_the_language():
    p = tl.Program("P(A); P(B)\nBig(x) <- P(x), sig(S[x]) > 0.5, clip(S[x], 0, 2) < 2")
    p.bind(S=np.array([1.0, -1.0]))
    assert "Big(A)" in str(p.why("Big(A)")) and "Big(B)" in str(p.why_not("Big(B)"))


def test_a_value_that_a_proof_cannot_compute_is_an_error_of_ours():
    p = tl.Program("P(A); P(B)\nBig(x) <- P(x), max(S[x, y]) > 0.5")
    p.bind(S=np.eye(2))
    with pytest.raises(tl.InputError, match="a proof cannot compute"):
        p.why("Big(A)")


def test_facts_of_files_have_their_lines(tmp_path: Path) -> None:
    """A header, blank lines and cells of several lines count."""
    path = tmp_path / "parents.csv"
    path.write_text('who,age\n\nAnn,3\n"Bo\nb",4\nCid,5\n', encoding="utf-8")
    p = tl.Program(f'Age(x,n) = "{path}"\nOld(x) <- Age(x,n), n > 3')
    assert [step.at.line for name in ("Cid", "Bo\\nb") for step in p.why(f'Old("{name}")').facts] == [6, 4]


def test_an_account_has_the_equations_of_its_element_and_no_warnings() -> None:
    p = tl.Program("Parent(Ann, Bob)\nS[Bob] = 0.9; S[Cid] = 0.2\nTop[x] max= Parent(x,y) S[y]")
    assert [text for text, _ in p.why("S[Bob]").equations] == ["S[Bob] = 0.9"]
    assert [c.element for c in p.why("Top[Ann]").contributions] == ["S[Bob]"]


@pytest.mark.parametrize("name", ["x", "Q"])
def test_what_the_program_does_not_have_is_refused_by_name(name):
    program = tl.Program("E(A,B)")
    for ask in (program.query, program.why, program.why_not):
        with pytest.raises(tl.InputError, match=f"no relation or tensor '{name}'"):
            ask(name)
