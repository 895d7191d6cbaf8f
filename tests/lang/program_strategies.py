"""Random programs, as syntax trees that a text could have."""

from __future__ import annotations

from hypothesis import strategies as st

from tensorlogic.lang import syntax as s
from tensorlogic.lang.tokens import FUNCTIONS

variable_names = st.sampled_from(["x", "y", "z", "t", "p'", "dx", "é", "_a"])
tensor_names = st.sampled_from(["W", "Parent", "X'", "Émile", "M''", "A1", "李"])
relation_names = st.sampled_from(["Parent", "likes", "R'", "Émile", "is_a"])
whole = st.integers(-999, 999)
texts = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=8)
awkward = st.sampled_from(
    ["", "#", "//", "; P(A)", 'say "x"', "it's", "a\\b", "a\nb", "), (", "bob", "Bob", "3", "é", "-", "."]
)
strings = st.one_of(texts, awkward)
variables = st.builds(s.Variable, variable_names)
constants = st.one_of(
    st.builds(s.Constant, tensor_names), st.builds(s.Constant, whole), st.builds(s.Constant, strings, st.just(True))
)
indices = st.recursive(
    st.one_of(variables, constants),
    lambda inner: st.builds(s.Arithmetic, st.sampled_from("+-*/"), inner, inner),
    max_leaves=4,
)
ranges = st.builds(s.Range, st.none() | indices, st.none() | indices)
plain_places = st.builds(s.Place, indices)
places = st.one_of(
    plain_places,
    st.builds(s.Place, variables, st.just(True), st.booleans()),
    st.builds(
        s.Place, variables | st.builds(s.Arithmetic, st.just("+"), variables, constants), st.just(False), st.just(True)
    ),
)
body_places = st.one_of(places, st.builds(s.Place, ranges))


def tensors(of_places, *, boolean=None, least=0):
    """Make tensors or relations; scalars are written without brackets."""
    listed = st.lists(of_places, min_size=least, max_size=3).map(tuple)
    numeric = st.builds(s.Tensor, tensor_names, listed, st.just(False))
    relations = st.builds(s.Tensor, relation_names, listed, st.just(True))
    return {None: numeric | relations, True: relations, False: numeric}[boolean]


numbers = st.builds(s.Number, whole | st.floats(allow_nan=False, allow_infinity=False))


def _products(inner):
    return st.builds(
        s.Product, st.lists(inner.filter(lambda e: not isinstance(e, s.Text)), min_size=2, max_size=3).map(tuple)
    )


def _nested(inner):
    return st.one_of(
        _products(inner),
        st.builds(s.Operation, st.sampled_from("+-/^"), inner, inner),
        st.builds(s.Negative, inner.filter(lambda e: not isinstance(e, s.Number))),
        st.builds(s.Call, st.sampled_from(sorted(FUNCTIONS)), st.lists(inner, min_size=1, max_size=2).map(tuple)),
    )


@st.composite
def lists(draw):
    """Make literals of one or two axes whose rows have equal lengths."""
    width = draw(st.integers(1, 3))
    rows = st.builds(s.ListLiteral, st.lists(numbers, min_size=width, max_size=width).map(tuple))
    return draw(rows | st.builds(s.ListLiteral, st.lists(rows, min_size=1, max_size=2).map(tuple)))


values = st.recursive(st.one_of(numbers, variables, tensors(body_places), lists()), _nested, max_leaves=8)
comparisons = st.builds(
    s.Comparison, st.sampled_from(["=", "!=", "<", "<=", ">", ">="]), values, values | st.builds(s.Text, strings)
)
atoms = tensors(body_places, boolean=True) | tensors(body_places, boolean=False, least=1)
literals = st.one_of(atoms, st.builds(s.Not, atoms), comparisons)
bodies = st.lists(literals, min_size=1, max_size=3).map(tuple)
heads = tensors(places)

fact_values = st.one_of(tensor_names, whole, strings)


@st.composite
def facts(draw, names=relation_names):
    """Make the facts of one relation."""
    arity = draw(st.integers(0, 3))
    rows = draw(st.lists(st.tuples(*[fact_values] * arity), min_size=1, max_size=4))
    return s.Facts(draw(names), tuple(zip(*rows, strict=True)) if arity else (), (1,) * len(rows))


statements = st.one_of(
    st.builds(s.Rule, tensors(places, boolean=True), bodies),
    st.builds(s.Equation, heads, st.sampled_from(["=", "+=", "max=", "min=", "avg=", "count="]), values),
    st.builds(s.Query, bodies),
    st.builds(s.Read, heads, strings),
    st.builds(s.Write, strings, tensors(body_places)),
    facts(),
)
modules = st.lists(statements, max_size=6).map(lambda found: s.Module(tuple(found)))


def same(module):
    """Return what a program says: its statements, with facts that stand together as one block and without lines."""
    found = []
    run = {}
    for part in module.statements:
        if isinstance(part, s.Facts):
            run.setdefault((part.name, len(part.columns)), []).extend(part.rows())
        else:
            found += [*run.items(), part]
            run = {}
    return [*found, *run.items()]
