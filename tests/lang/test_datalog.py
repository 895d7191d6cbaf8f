"""Datalog rules of programs to graphs, against a naive evaluator in plain Python and networkx, on both backends."""

import itertools
import operator

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorlogic as tl
from tensorlogic.lang import equations
from tensorlogic.lang import syntax as s
from tensorlogic.lang.analysis import GivenTensor, analyse
from tensorlogic.lang.datalog import lower_component
from tensorlogic.lang.grammar import parse

BACKENDS = ["numpy", "reference"]


def lowered(text, given=None):
    """Return the analysis of a program and its graph."""
    module = parse(text)
    analysis = analyse(module.statements, given={n: GivenTensor.of(a) for n, a in (given or {}).items()})
    b = tl.GraphBuilder()
    values = {n: b.input(n, analysis.shape(n), "bool") for n, t in analysis.tensors.items() if t.facts}
    for component in analysis.components:
        (lower_component if component.boolean else equations.lower_component)(component, analysis, b, values)
    return analysis, b.build({n: values[n] for n, t in analysis.tensors.items() if t.derived and t.boolean})


def answers(text, backend="numpy", **given):
    """Run a program; return the tuples of every derived relation, by name."""
    analysis, graph = lowered(text, given)
    inputs = {n: np.zeros(analysis.shape(n), bool) for n, t in analysis.tensors.items() if t.facts}
    for facts in (x for x in analysis.statements if isinstance(x, s.Facts)):
        for row in facts.rows():
            inputs[facts.name][tuple(analysis.code(facts.name, p, c) for p, c in enumerate(row))] = True
    inputs |= given
    out = tl.Executor(backend).execute(graph, {n: inputs[n] for n in graph.inputs})
    return {
        name: {
            tuple(analysis.place(name, p).element(int(i)) for p, i in enumerate(at)) for at in np.argwhere(out[name])
        }
        for name in out.keys()  # noqa: SIM118 - the outputs of a run are no dictionary
    }


# a naive evaluator: every assignment of the constants to the variables of a rule, stratum by stratum


OPERATORS = {
    "=": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.floordiv,
}  # fmt: skip


def value(part, env):
    match part:
        case s.Variable(name=name):
            return env[name]
        case s.Constant(value=found) | s.Number(value=found) | s.Text(value=found):
            return found
        case s.Tensor(name=name):
            return name
        case s.Negative(value=inner):
            return -value(inner, env)
        case s.Product(factors=(first, second)):
            return value(first, env) * value(second, env)
        case s.Operation(operator=sign, left=left, right=right) | s.Arithmetic(operator=sign, left=left, right=right):
            return OPERATORS[sign](value(left, env), value(right, env))


def holds(literal, env, known, universe):
    match literal:
        case s.Tensor(name=name, places=places):
            return tuple(value(p.index, env) for p in places) in known.get(name, set())
        case s.Not(atom=atom):
            free = [v for v in s.variables(atom) if v not in env]
            return not any(
                holds(atom, {**env, **dict(zip(free, row, strict=True))}, known, universe)
                for row in itertools.product(universe, repeat=len(free))
            )
        case s.Comparison(operator=sign, left=left, right=right):
            a, b = value(left, env), value(right, env)
            return OPERATORS[sign](a, b) if type(a) is type(b) else sign == "!="


def naive(text):
    """Return what a program derives; constants are those of the facts and rules."""
    module = parse(text)
    analysis = analyse(module.statements)
    known = {}
    for facts in (x for x in analysis.statements if isinstance(x, s.Facts)):
        known.setdefault(facts.name, set()).update(facts.rows())
    universe = sorted(
        {e for info in analysis.domains.values() for e in (info.elements or range(info.size))},
        key=lambda e: (str(type(e)), e),
    )
    for component in analysis.components:
        while True:
            new = {name: set(known.get(name, ())) for name in component.names}
            for rule in component.statements:
                body = rule.body if isinstance(rule, s.Rule) else getattr(rule.value, "factors", (rule.value,))
                outer = [x for x in body if not isinstance(x, s.Not)]
                names = list(dict.fromkeys(v for x in outer for v in s.variables(x)))
                for row in itertools.product(universe, repeat=len(names)):
                    env = dict(zip(names, row, strict=True))
                    if all(holds(x, env, known, universe) for x in (*outer, *(x for x in body if x not in outer))):
                        new[rule.head.name].add(tuple(value(p.index, env) for p in rule.head.places))
            if all(new[name] == known.get(name, set()) for name in new):
                known |= new
                break
            known |= new
    return {name: known[name] for name, t in analysis.tensors.items() if t.derived}


def agrees(text, backends=BACKENDS):
    want = naive(text)
    for backend in backends:
        assert answers(text, backend) == want, text
    return want


FAMILY = """
Parent(Alice, Bob); Parent(Bob, Carol); Parent(Bob, Dan); Parent(Eve, Bob)
"""
EDGES = "Edge(0,1); Edge(1,2); Edge(2,0); Edge(2,3); Edge(4,4)\n"

PROGRAMS = {
    "ancestors": FAMILY + "Ancestor(x,y) <- Parent(x,y); Ancestor(x,z) <- Ancestor(x,y), Parent(y,z)",
    "facts of a head": FAMILY + "Anc(Zoe, Alice); Anc(x,y) <- Parent(x,y); Anc(x,z) <- Anc(x,y), Anc(y,z)",
    "facts of a plain head": FAMILY + "Old(Zoe); Old(x) <- Parent(x,y)",
    "constants": FAMILY + "P(x) <- Parent(Bob, x); Q(Alice, x) <- Parent(x, Dan); R(x, Alice, Zoe) <- Parent(x, x)",
    "repeats": EDGES + "Loop(x) <- Edge(x,x); Two(x,x) <- Edge(x,y), Edge(y,x); D(x,y,x,y) <- Edge(x,y)",
    "a diagonal by itself": EDGES + "Same(x,x) <- Edge(x,y)",
    "negation": FAMILY + """Person(x) <- Parent(x,y); Person(y) <- Parent(x,y)
        Leaf(x) <- Person(x), not Parent(x,_); Root(x) <- Person(x), not Parent(_,x)
        Other(x,y) <- Person(x), Person(y), not Parent(x,y), x != y; Few(x) <- Person(x), not Other(x,x), not Parent(Bob,x)""",
    "a negated diagonal": EDGES + "Open(x) <- Edge(x,y), not Edge(x,x), not Edge(y,y)",
    "nothing at all": EDGES + "Empty() <- Edge(x,y), x > 9; Some() <- Edge(x,_); No(x) <- Edge(x,y), not Some(); E(x) <- Edge(x,_), not Empty()",
    "strata": EDGES + """Path(x,y) <- Edge(x,y); Path(x,z) <- Path(x,y), Edge(y,z)
        Node(x) <- Edge(x,_); Node(y) <- Edge(_,y); Apart(x,y) <- Node(x), Node(y), not Path(x,y)
        Far(x,y) <- Apart(x,y); Far(x,z) <- Far(x,y), Apart(y,z)""",
    "mutual": EDGES + "Odd(x,y) <- Edge(x,y); Odd(x,z) <- Even(x,y), Edge(y,z); Even(x,z) <- Odd(x,y), Edge(y,z)",
    "three heads": EDGES + "A(x) <- Edge(0,x); B(y) <- A(x), Edge(x,y); C(y) <- B(x), Edge(x,y), A(x); A(x) <- C(x), B(x)",
    "same generation": FAMILY + """Person(x) <- Parent(x,_); Person(x) <- Parent(_,x)
        SG(x,x) <- Person(x); SG(x,y) <- Parent(u,x), SG(u,v), Parent(v,y)""",
    "comparisons": EDGES + """Up(x,y) <- Edge(x,y), x < y; Down(x,y) <- Edge(x,y), x >= y; Big(x) <- Edge(x,_), x > 1
        Not(x,y) <- Edge(x,y), x != 2, y <= 3; Eq(x,y) <- Edge(x,_), Edge(y,_), x = y; Is(x) <- Edge(x,_), x = 2""",
    "names compared": FAMILY + '''Sib(x,y) <- Parent(z,x), Parent(z,y), x != y; A(x) <- Parent(x,_), x = Alice
        B(x) <- Parent(x,_), x != "Alice"''',
    "arithmetic": EDGES + """Next(x,y) <- Edge(x,_), Edge(_,y), y = x + 1; Twice(x,y) <- Edge(x,_), Edge(y,_), y = 2*x
        Half(x,y) <- Edge(x,_), y = x/2, Edge(y,_); Sum(x,y) <- Edge(x,y), x + y > 3; Neg(x) <- Edge(x,_), x - 3 >= -1""",
    "arithmetic binds": EDGES + "Next(x,y) <- Edge(x,_), y = x + 1; Prev(y) <- Edge(x,_), x = y + 1, Edge(y,_)",
    "arithmetic in places": EDGES + "Shift(x) <- Edge(x+1, y), Edge(x, _); Head(x+1, y) <- Edge(x, y), x < 3",
    "counting up": "N(0); Top(5); N(y) <- N(x), y = x + 1, Top(t), y <= t",
    "integers that are names": "Year(19); Year(20); Year(8)\nLater(x,y) <- Year(x), Year(y), x < y; Gap(x,y) <- Year(x), Year(y), x + 11 <= y",
    "an equation is a rule": EDGES + "R(x) = Edge(x,y) Edge(y,x); S(x,y) = Edge(x,y)",
    "products of unlike atoms": EDGES + "Pair(x,y) <- Edge(x,_), Edge(_,y); Wide(x,y,z) <- Edge(x,y), Edge(z,z)",
    "triangles": EDGES + "Tri(x,y,z) <- Edge(x,y), Edge(y,z), Edge(z,x)",
    "arity three": "T(A,B,C); T(B,C,A); T(A,A,B)\nU(x,z) <- T(x,y,z), T(z,x,y); V(x) <- T(x,x,y); W(x,y,z) <- W(y,z,x), T(x,y,z); W(x,y,z) <- T(x,y,z)",
    "two rules, one body twice": EDGES + "P(x) <- Edge(x,y), Edge(x,y); P(y) <- Edge(x,y)",
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name):
    agrees(PROGRAMS[name])


def test_named_answers():
    want = agrees(PROGRAMS["ancestors"])
    assert ("Alice", "Dan") in want["Ancestor"] and len(want["Ancestor"]) == 8
    assert agrees(PROGRAMS["counting up"])["N"] == {(n,) for n in range(6)}
    assert agrees(PROGRAMS["negation"])["Leaf"] == {("Carol",), ("Dan",)}


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), min_size=1, max_size=16))
def test_paths_are_those_of_networkx(edges):
    facts = "".join(f"Edge({a},{b})\n" for a, b in edges)
    graph = nx.DiGraph(edges)
    want = {(a, b) for a in graph for b in nx.descendants(graph, a)} | {
        (a, a) for c in nx.strongly_connected_components(graph) for a in c if len(c) > 1 or graph.has_edge(a, a)
    }
    for rule in ("Path(x,y), Edge(y,z)", "Edge(x,y), Path(y,z)", "Path(x,y), Path(y,z)"):
        assert answers(f"{facts}Path(x,y) <- Edge(x,y); Path(x,z) <- {rule}")["Path"] == want


# random programs


@st.composite
def programs(draw):
    """Draw facts and rules over relations of one to three places, with recursion, constants, negation and comparisons."""
    arity = {"E": 2, "F": 1, "P": 2, "Q": draw(st.integers(0, 3)), "R": draw(st.integers(1, 2))}
    constants = draw(st.sampled_from([["A", "B", "C"], ["0", "1", "2"]]))
    lines = []
    for name in "EF":
        for row in itertools.product(constants, repeat=arity[name]):
            if draw(st.booleans()):
                lines.append(f"{name}({','.join(row)})")
    lines += [f"F({c})" for c in constants] + [f"E({constants[0]},{constants[1]})", "P(x,y) <- E(x,y), E(y,x)"]
    lines += [f"{n}({','.join(['x'] * arity[n])}) <- E(x,x)" for n in "QR"]
    order = ["E", "F", "P", "Q", "R"]
    for n, head in enumerate(order[2:], 2):
        for _ in range(draw(st.integers(1, 2))):
            term = st.sampled_from(["x", "y", "z", "x", "y", *constants[:1]])
            atoms = draw(st.lists(st.sampled_from(order[: n + 1]), min_size=1, max_size=2))
            body = [f"{a}({','.join(draw(term) for _ in range(arity[a]))})" for a in atoms]
            bound = sorted({v for atom in body for v in "xyz" if v in atom.partition("(")[2]})
            chosen = st.sampled_from([*bound, constants[1]]) if bound else st.just(constants[1])
            if draw(st.booleans()):
                lower = draw(st.sampled_from(order[:n]))
                places = [draw(st.one_of(chosen, st.just("_"))) for _ in range(arity[lower])]
                body.append(f"not {lower}({','.join(places)})")
            if bound and draw(st.booleans()):
                signs = ["=", "!=", "<", "<=", ">", ">="] if constants[0] == "0" else ["=", "!="]
                body.append(f"{draw(st.sampled_from(bound))} {draw(st.sampled_from(signs))} {draw(chosen)}")
            lines.append(f"{head}({','.join(draw(chosen) for _ in range(arity[head]))}) <- {', '.join(body)}")
    return "\n".join(lines)


@settings(max_examples=60, deadline=None)
@given(programs(), st.sampled_from(["numpy", "numpy", "numpy", "reference"]))
def test_random_programs(text, backend):
    agrees(text, [backend])


# what a graph looks like


def body_of_fixpoint(graph):
    (loop,) = [n.op for n in graph.nodes if n.op.name == "fixpoint"]
    return loop


def test_a_rule_is_one_join():
    _, graph = lowered("E(A,B)\nT(x,z,Zoe) <- E(x,y), E(y,z), not E(z,_), x != z, E(A,x)")
    joins = [n.op.spec for n in graph.nodes if n.op.name == "einsum"]
    assert sorted(joins) == ["ab,bc,c,ac,a,d->acd", "ab->a"]


def test_what_stays_the_same_is_made_before_the_loop():
    _, graph = lowered("E(A,B)\nP(x,y) <- E(x,y); P(x,z) <- P(x,y), E(y,z), not E(z,x), x != z")
    loop = body_of_fixpoint(graph)
    assert [n.op.name for n in loop.body.nodes if n.op.name != "input"] == ["einsum", "logical_or"]
    assert loop.combine == "or"


def test_a_long_chain_is_complete():
    text = "".join(f"Edge({n},{n + 1})\n" for n in range(80))
    assert len(answers(text + "Path(x,y) <- Edge(x,y); Path(x,z) <- Path(x,y), Edge(y,z)")["Path"]) == 81 * 80 // 2


def test_numbers_are_compared():
    score, limit = np.array([1.0, 4.0, 3.5]), np.array([2.0, 5.0, 0.0])
    text = "Big(x) <- Score[x] > 3; More(x,y) <- Score[x] >= 2*Limit[y] + 1, x != y; Up(x) <- Big(x), Score[x] > x + 2"
    out = answers(text, Score=score, Limit=limit)
    assert out["Big"] == {(1,), (2,)}
    assert out["More"] == {(x, y) for x in range(3) for y in range(3) if x != y and score[x] >= 2 * limit[y] + 1}
    assert out["Up"] == {(x,) for x in (1, 2) if score[x] > x + 2}


def test_scalars_stand_for_their_values():
    out = answers(EDGES + "L = 2\nP(x) <- Edge(x, L); Q(x) <- Edge(x,_), x > L; R(x, L) <- Edge(x, _), x = L")
    assert out == {"P": {(1,)}, "Q": {(4,)}, "R": {(2, 2)}}


# numbers that rules derive


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("Num(4); Next(x,y) <- Num(x), y = x + 1", {"Next": {(4, 5)}}),
        ("Num(4); A(y) <- Num(x), y = x + 1; B(y) <- A(x), y = x + 1", {"A": {(5,)}, "B": {(6,)}}),
        ("Num(3); Num(2); P(x,y,z) <- Num(x), Num(y), z = x*y", {"P": {(3, 3, 9), (3, 2, 6), (2, 3, 6), (2, 2, 4)}}),
        ("Num(4); Head(x+3) <- Num(x)", {"Head": {(7,)}}),
        ("N(0); N(y) <- N(x), y = x + 1, y <= 7", {"N": {(n,) for n in range(8)}}),
        ("N(0); N(y) <- N(x), y = x + 1, x < 7", {"N": {(n,) for n in range(8)}}),
        ("N(0); N(x+2) <- N(x), x < 7", {"N": {(0,), (2,), (4,), (6,), (8,)}}),
        ("N(5); N(y) <- N(x), y = x - 1, x > 0", {"N": {(n,) for n in range(6)}}),
        ("N(3); N(x-1) <- N(x), x > -2", {"N": {(n,) for n in range(-2, 4)}}),
        ("Num(4); Num(3); Less(x,y) <- Num(x), y = x - 5", {"Less": {(4, -1), (3, -2)}}),
        ("Num(-4); Num(3); P(x,y) <- Num(x), y = x + 1", {"P": {(-4, -3), (3, 4)}}),
        ("Num(-5); Num(3); P(z) <- Num(x), Num(y), z = x*y", {"P": {(25,), (-15,), (9,)}}),
        (
            "F(0,0); F(1,1); F(n+2,c) <- F(n,a), F(n+1,b), c = a + b, n < 4, c < 9",
            {"F": {(0, 0), (1, 1), (2, 1), (3, 2), (4, 3), (5, 5)}},
        ),
        ("N(1); N(y) <- N(x), y = 2*x, 100 >= y", {"N": {(2**n,) for n in range(7)}}),
        ("N(0); Top(6); N(y) <- N(x), Top(t), y = x + 2, y <= t", {"N": {(0,), (2,), (4,), (6,)}}),
        ("N(1); Num(9); N(y) <- N(x), Num(z), y = z + 1", {"N": {(1,), (10,)}}),
        ("L = 3; N(0); N(y) <- N(x), y = x + 1, y < L", {"N": {(0,), (1,), (2,)}}),
        ("N(7); M(x) <- N(x); M(y) <- M(x), y = x/2", {"M": {(7,), (3,), (1,), (0,)}}),
    ],
)
def test_domains_hold_the_numbers_that_rules_derive(text, want):
    assert answers(text.replace("; ", "\n")) == want


@pytest.mark.parametrize(
    "text",
    [
        "N(0); N(y) <- N(x), y = x + 1",
        "N(0); N(x+1) <- N(x)",
        "N(1); N(y) <- N(x), y = 2*x",
        "A(0); B(y) <- A(x), y = x + 1; A(x) <- B(x)",
        "N(9); N(y) <- N(x), y = x^x",
        "N(5); N(y) <- N(x), y = x - 1",
        "N(9); N(y) <- N(x), y = x + 1, x != 20",
    ],
)
def test_numbers_without_end_are_refused(text):
    with pytest.raises(tl.GraphError, match="have no end") as caught:
        lowered(text.replace("; ", "\n"))
    assert caught.value.diagnostic.code == "E756"
    assert caught.value.diagnostic.location.line > 1


def test_numbers_below_zero_are_derived_where_nothing_else_fixes_the_size() -> None:
    program = tl.Program("R(y-y-2, y+1) <- E(x, y, y)\nS(y) <- E(x, 2, y)")
    with pytest.raises(tl.TensorLogicError, match=r"the relation 'E' has no facts"):
        program.run()["R"]
    program.add("E", [(0, 1, 1), (0, 2, 2)])
    assert sorted(program.query("R(x, y)?")) == [(-2, 2), (-2, 3)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("E(A,B)\nP(x) <- E(x,y), x < y", "which have no order"),
        ("E(A,B)\nP(x) <- E(x,y), x < Alice", "no number|no order"),
        ("E(0,1)\nP(x) <- E(x,y), E(0:1, x)", "range"),
    ],
)
def test_mistakes(text, message):
    with pytest.raises(tl.TensorLogicError, match=message) as caught:
        lowered(text)
    assert caught.value.diagnostic.location.line == 2
