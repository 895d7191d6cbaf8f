"""Expressions and rules to graphs; rules that need each other become one fixpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial, reduce
from typing import Any

from ..diagnostics import value_text
from ..errors import GraphError
from ..ir.graph import EinsumGraph
from ..ir.tensor import Tensor
from .context import CompilerContext
from .expr import TLExpr
from .formula import Formula, Variable, parts
from .formula_to_graph import Emitter
from .notation_reader import parse_expr
from .rule_text import holds_rules, read_rules
from .rules import Component, Rule, components, round_limit
from .strategies import Strategy, clipped, get_strategy

_RuleBody = tuple[Formula, list[Variable], TLExpr]  # over the places of the head


def compile(
    source: TLExpr | Rule | str | Sequence[Rule | str],
    context: CompilerContext | None = None,
    *,
    strategy: str | Strategy = "hard_boolean",
    clip: bool = False,
) -> EinsumGraph:
    """Compile an expression, or a set of rules, to a graph; both may be text.

    The inputs are the predicates by name. An expression has one output, ``result``, with an axis for each free variable in order of
    first occurrence; rules have one output per head, and recursive ones run until nothing changes. ``clip`` keeps the quantifiers
    of a counting strategy within 0..1.

    >>> import numpy as np, tensorlogic as tl
    >>> context = tl.CompilerContext(domains={"Person": 3})
    >>> print(tl.compile("exists y. sister(x, y) & parent(y, z)", context))
    graph {
      sister: any[3, 3] = input()
      parent: any[3, 3] = input()
      %2: bool[3, 3] = einsum(sister, parent, spec="ab,bc->ac", algebra="boolean")
      return result=%2
    }
    >>> rules = "Ancestor(x,y) <- Parent(x,y);  Ancestor(x,z) <- Ancestor(x,y), Parent(y,z)"
    >>> out = tl.Executor().execute(tl.compile(rules, context), {"Parent": np.eye(3, k=1, dtype=bool)})
    >>> out["Ancestor"].astype(int)
    array([[0, 1, 1],
           [0, 0, 1],
           [0, 0, 0]])
    """
    if not isinstance(source, TLExpr | Rule | str | Sequence):
        raise _no_source(source)
    if not isinstance(context, CompilerContext):
        hint = "compile(source, CompilerContext(domains={'Person': 10})) says what there is"
        kind = "" if context is None else f", got {type(context).__name__}"
        raise GraphError(f"a CompilerContext with the domains is expected{kind}", hint, code="E301")
    row = get_strategy(strategy)
    lowering = _Lowering(context, clipped(row) if clip else row)
    if isinstance(source, str) and not holds_rules(source):
        source = parse_expr(source)
    if isinstance(source, TLExpr):
        return lowering.expression(source)
    several = isinstance(source, Sequence) and not isinstance(source, str)
    rules: list[Any] = []
    for given in list(source) if several else [source]:  # type: ignore[arg-type]
        rules += read_rules(given) if isinstance(given, str) else [given]
    for rule in rules:
        if not isinstance(rule, Rule):
            raise _no_source(rule)
    if not rules:
        raise GraphError("a set of rules needs at least one", "write 'p(x) <- q(x)'", code="E752")
    return lowering.rules(rules)


def _no_source(given: object) -> GraphError:
    """Return the error for what is neither an expression nor a rule."""
    hints = ["tl.parse_expr(text) reads an expression", "tl.Rule(head, body) makes a rule"]
    shown = value_text(given)
    if isinstance(given, EinsumGraph):
        hints, shown = ["Executor().compile_graph(graph) compiles a graph"], "a graph"
    elif callable(given):
        shown = "a function"
    return GraphError(f"an expression or rules are expected, got {shown}", *hints, code="E301")


class _Lowering:
    """One compilation of an expression or of rules."""

    def __init__(self, context: CompilerContext, strategy: Strategy) -> None:
        self.s = strategy
        self.emitter = Emitter(context, strategy)
        self.b, self.domains, self.formulas = self.emitter.b, self.emitter.domains, self.emitter.formulas

    def expression(self, expr: TLExpr) -> EinsumGraph:
        """Compile one expression; its output is ``result``."""
        free: dict[str, Variable] = {}
        formula = self.formulas.read(expr, free)
        self.formulas.check_names()
        order = [free[n] for n in expr.free_variables()]
        return self._named(self.b.build(result=self.emitter.answer(formula, order, expr)), {"result": order})

    def rules(self, rules: list[Rule]) -> EinsumGraph:
        """Compile rules in the order they depend on each other; each head is an output."""
        by_head: dict[str, list[Rule]] = {}
        for rule in rules:
            if rule.head.kind != "pred":
                message = f"the head of a rule is a predicate, got {rule.head}"
                raise GraphError(message, code="E612", location=rule.head.location)
            by_head.setdefault(rule.head.name, []).append(rule)
        read = {name: [self._read_rule(rule) for rule in group] for name, group in by_head.items()}
        self.formulas.check_names()
        for component in components(by_head, self.s):
            if component.recursive:
                self._fixpoint(component, read)
            else:
                (name,) = component.heads
                self.emitter.sources[name] = self._either([self.emitter.answer(*each) for each in read[name]])
        graph = self.b.build({name: self.emitter.sources[name] for name in by_head})
        return self._named(graph, {name: rules[0][1] for name, rules in read.items()})

    def _named(self, graph: EinsumGraph, outputs: Mapping[str, Sequence[object]]) -> EinsumGraph:
        """Let a graph know the names of the domains of its outputs and predicates, where they have names."""
        places = {n: [(n, i) for i in range(self.domains.arity(n))] for n in graph.inputs}
        names = {n: tuple(self.domains.members(p) for p in keys) for n, keys in {**places, **outputs}.items()}
        graph = graph.with_axis_names({n: axes for n, axes in names.items() if any(axes)})
        # inputs that are no predicates belong to graphs that compute some
        scores = [n for n in graph.inputs if n in self.formulas.predicates] if self.s.scores else []
        return graph.with_scores(scores) if scores else graph

    def _either(self, answers: Sequence[Tensor]) -> Tensor:
        return reduce(partial(self.s.or_, self.b), answers)

    def _fixpoint(self, component: Component, read: Mapping[str, list[_RuleBody]]) -> None:
        """Make heads that depend on each other the carries of one fixpoint, which starts where nothing holds."""
        heads, predicates = component.heads, list[Tensor]()
        fixed: dict[int, Tensor] = {}  # the answers of rules that do not depend on the heads
        for rule in (rule for name in heads for rule in read[name]):
            if not self._hoist(rule, heads, predicates):
                fixed[id(rule)] = self.emitter.answer(*rule)
        shapes = [[self.emitter.size(v) for v in read[name][0][1]] for name in heads]
        false = self.b.literal(False) if self.s.boolean else self._zero(predicates)
        start = [self.b.broadcast_to(false, shape) for shape in shapes]
        outside = self.emitter.values

        def body(*carries: Tensor) -> list[Tensor]:
            self.emitter.values = dict(outside)  # what is made in here cannot be used out there
            self.emitter.sources.update(zip(heads, carries, strict=True))
            answers = [
                [fixed[id(rule)] if id(rule) in fixed else self.emitter.answer(*rule) for rule in read[name]]
                for name in heads
            ]
            return [self._carried(each, false) for each in answers]

        assert self.s.rounds is not None
        self.b.location = read[heads[0]][0][2].location  # where an error of the loop points to
        results = self.b.fixpoint(body, *start, combine=self.s.rounds, limit=round_limit(shapes))
        self.b.location = None
        self.emitter.values = outside
        self.emitter.sources.update(zip(heads, results if isinstance(results, tuple) else (results,), strict=True))

    def _carried(self, answers: list[Tensor], false: Tensor) -> Tensor:
        """Return the or of a head's rules in the dtype of its carry."""
        either = self._either(answers)
        if self.s.boolean:
            return either if either.dtype == "bool" else self.b.cast(either, "bool")
        return self.b.maximum(either, false)

    def _hoist(self, rule: _RuleBody, heads: Sequence[str], predicates: list[Tensor]) -> bool:
        """Make the parts of a rule that do not depend on some heads before the loop over them; tell whether the rule does."""
        whole = self.emitter.prepared(*rule)
        moves: set[Formula] = set()
        every = parts(whole)
        for f in every:
            if (f.kind == "pred" and f.name in heads) or any(a in moves for a in f.args):
                moves.add(f)
            elif f.kind == "pred":
                predicates.append(self.emitter.value(f).tensor)
        for a in (a for f in every if f in moves for a in f.args if a not in moves):
            self.emitter.value(a)
        return whole in moves

    def _zero(self, predicates: Sequence[Tensor]) -> Tensor:
        """Return a 0 of the dtype that all these come to together, which only their arrays say."""
        zero = self.b.literal(0.0)
        for t in {t.node: t for t in predicates}.values():
            row = t if t.shape else self.b.reshape(t, (1,))
            zero = self.b.add(zero, self.b.sum(row[:0]))
        return zero

    def _read_rule(self, rule: Rule) -> _RuleBody:
        """Return a rule's body over the places of its head: constants and repeated variables become equations."""
        head, f = rule.head, self.formulas
        free: dict[str, Variable] = {}
        body = f.read(rule.body, free)
        f.predicates.setdefault(head.name, head.location)
        self.domains.use(head.name, len(head.terms), head.location)
        order: list[Variable] = []
        equations: list[Formula] = []
        for i, t in enumerate(head.terms):
            variable = Variable(f"{head.name}.{i + 1}")
            if t.is_variable:
                if t.name not in free:
                    message = f"variable {t.name!r} of the head {head} does not occur in the body"
                    hint = "use it in a predicate of the body"
                    raise GraphError(message, hint, code="E613", location=head.location)
                known = free[str(t.name)]
                if t.domain is not None:
                    self.domains.say(known, t.domain, f"variable {t.name}", head.location)
                if known not in order:
                    variable = known
                else:
                    equations.append(f.make("equation", over=(variable, known), location=head.location))
                    self.domains.join(variable, known)
            else:
                equations.append(f.make("equation", over=(variable, t), location=head.location))
                self.domains.constant((head.name, i), t.name, head.location)
            self.domains.join((head.name, i), variable)
            order.append(variable)
        if equations:
            body = f.make("and", (body, *equations), location=rule.body.location)
        hidden = tuple(v for v in free.values() if v not in order and v in body.free)
        if hidden:
            body = f.make("exists", (body,), over=hidden, location=rule.body.location)
        return body, order, rule.body
