"""A brute-force evaluator of logical expressions: plain Python over every assignment, straight from the table of the six logics."""

import itertools
import math


def truth(strategy):
    """Return the connectives and quantifiers of a logic as functions of Python numbers."""
    rows = {
        "hard_boolean": (
            lambda a, b: bool(a) and bool(b), lambda a, b: bool(a) or bool(b), lambda a: not a,
            lambda a, b: (not a) or bool(b), any, all,
        ),
        "fuzzy_godel": (
            min, max, lambda a: 1 - a, lambda a, b: 1 if a <= b else b,
            lambda v: max(v, default=0), lambda v: min(v, default=1),
        ),
        "fuzzy_product": (
            lambda a, b: a * b, lambda a, b: a + b - a * b, lambda a: 1 - a, lambda a, b: 1 if a <= b else b / a,
            lambda v: max(v, default=0), lambda v: min(v, default=1),
        ),
        "fuzzy_lukasiewicz": (
            lambda a, b: max(0, a + b - 1), lambda a, b: min(1, a + b), lambda a: 1 - a,
            lambda a, b: min(1, 1 - a + b), lambda v: max(v, default=0), lambda v: min(v, default=1),
        ),
        "probabilistic": (
            lambda a, b: a * b, lambda a, b: a + b - a * b, lambda a: 1 - a, lambda a, b: 1 - a + a * b,
            lambda v: 1 - math.prod(1 - a for a in v), math.prod,
        ),
        "soft_differentiable": (
            lambda a, b: a * b, lambda a, b: a + b - a * b, lambda a: 1 - a, lambda a, b: 1 - a + a * b,
            sum, lambda v: 1 - sum(1 - a for a in v),
        ),
    }  # fmt: skip
    return rows[strategy]


def evaluate(expr, env, arrays, places, sizes, strategy, clip=False):
    """Return the value of an expression where ``env`` gives the variables and ``places`` the index of each constant."""
    and_, or_, not_, imply, some, every = truth(strategy)

    def ev(e, env):
        go = lambda child: ev(child, env)  # noqa: E731
        match e.kind:
            case "pred":
                index = tuple(env[t.name] if t.is_variable else places[t.name] for t in e.terms)
                return arrays[e.name][index].item()
            case "same":
                return len({env[t.name] if t.is_variable else places[t.name] for t in e.terms}) == 1
            case "constant":
                return e.value
            case "and":
                return and_(go(e.args[0]), go(e.args[1]))
            case "or":
                return or_(go(e.args[0]), go(e.args[1]))
            case "not":
                return not_(go(e.args[0]))
            case "imply":
                return imply(go(e.args[0]), go(e.args[1]))
            case "iff":
                a, b = go(e.args[0]), go(e.args[1])
                return and_(imply(a, b), imply(b, a))
            case "xor":
                a, b = go(e.args[0]), go(e.args[1])
                return and_(or_(a, b), not_(and_(a, b)))
            case "exists" | "forall":
                body = e.args[0]
                used = [t for t in e.terms if t.name in body.free_variables()]
                if not used:
                    return go(body)
                values = [
                    ev(body, {**env, **{t.name: i for t, i in zip(used, place, strict=True)}})
                    for place in itertools.product(*(range(sizes[t.domain]) for t in used))
                ]
                result = some(values) if e.kind == "exists" else every(values)
                return max(0.0, min(1.0, result)) if clip else result
            case "if":
                c, a, b = (go(x) for x in e.args)
                return (a if c else b) if strategy == "hard_boolean" else c * a + (1 - c) * b
            case "add":
                return float(go(e.args[0])) + float(go(e.args[1]))
            case "multiply":
                return float(go(e.args[0])) * float(go(e.args[1]))
            case "less":
                return go(e.args[0]) < go(e.args[1])
            case "greater_equal":
                return go(e.args[0]) >= go(e.args[1])
            case other:
                raise AssertionError(other)

    return ev(expr, env)
