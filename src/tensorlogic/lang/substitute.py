"""Substitution: free variables of an expression replaced by terms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .expr import QUANTIFIERS, Term, TLExpr


def fresh(name: str, taken: set[str]) -> str:
    """Return a name like the given one that is not taken: x' for x."""
    while name in taken:
        name += "'"
    return name


def substitute(root: TLExpr, values: Mapping[str, Term]) -> TLExpr:
    """Substitute without recursion: environments travel down on a stack, results come up on another.

    What becomes of a part depends on the part and what replaces its own free variables, and is made once for each.
    """
    done: list[TLExpr] = []
    memo: dict[Any, TLExpr] = {}
    pending: list[tuple[TLExpr, Mapping[str, Term], tuple[Term, ...], Any]] = [(root, values, (), None)]
    while pending:
        item, env, terms, ready = pending.pop()
        if ready is not None:
            n = len(item.args)
            parts = tuple(done[len(done) - n :])
            del done[len(done) - n :]
            new = TLExpr(item.kind, parts, item.name, terms, item.value, item.location)
            memo[ready] = new
            done.append(new)
            continue
        env = {k: env[k] for k in item.free_variables() if k in env}
        key = (id(item), tuple(env.items()))
        known = memo.get(key) if env else item
        if known is not None:
            done.append(known)
            continue
        if item.kind in QUANTIFIERS:
            terms, env = _uncaptured(item, env)
        else:
            terms = tuple(env.get(str(t.name), t) if t.is_variable else t for t in item.terms)
        pending.append((item, env, terms, key))
        pending.extend((a, env, (), None) for a in reversed(item.args))
    return done[0]


def _uncaptured(item: TLExpr, env: dict[str, Term]) -> tuple[tuple[Term, ...], dict[str, Term]]:
    """Return a quantifier's variables, renamed where they would capture one that arrives, and the environment of its body."""
    arriving = {str(v.name) for v in env.values() if v.is_variable}
    taken = arriving.union(item.args[0].free_variables(), [str(t.name) for t in item.terms])
    terms: list[Term] = []
    for t in item.terms:
        if t.name in arriving:
            new = Term.var(fresh(str(t.name), taken), t.domain)
            taken.add(str(new.name))
            env = {**env, str(t.name): new}
            t = new
        terms.append(t)
    return tuple(terms), env
