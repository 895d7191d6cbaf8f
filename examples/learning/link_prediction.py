"""Which facts are missing? ComplEx embeddings of a knowledge graph, and rules learned on top, ranked against every other answer.

A fact r(s, o) is scored by embeddings of complex numbers, Re(sum of s r conj(o)): an einsum. The question r(s, ?) is a choice among all
entities, so the loss is a softmax cross entropy; each relation has a second embedding for the question r(?, o). With --rules 1 or 2 every rule
r(x, z) <- p(x, z) and r(x, z) <- p(x, y), q(y, z) has a weight that is learned too: what a rule derives from the known facts is an einsum
too, and adds to the score. The data are triples of names: a line `relation(subject, object).` each in train.nl, dev.nl and test.nl, or
subject, relation and object between tabs in train.txt, valid.txt and test.txt, as in data/umls.

Run it: python examples/learning/link_prediction.py FOLDER [--epochs 20] [--rules 1]
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

import tensorlogic as tl
from tensorlogic.tables import table

PUBLISHED = {"kinship": 0.81, "umls": 0.89, "nations": 0.75}  # filtered MRR of ComplEx (Minervini et al. 2020)
FACT = re.compile(r"(\w+)\((\w+),\s*(\w+)\)")
Triples = np.ndarray[Any, Any]


def facts_of(folder: Path, part: str) -> list[tuple[str, ...]]:
    """Return the facts (subject, relation, object) of a part: train, valid or test."""
    tabs, notation = folder / f"{part}.txt", folder / f"{part.replace('valid', 'dev')}.nl"
    if tabs.exists():
        return [tuple(line.split("\t")) for line in tabs.read_text(encoding="utf-8").splitlines()]
    if not notation.exists():
        raise SystemExit(f"there is neither {tabs} nor {notation}: make data fetches umls and nations")
    return [(s, r, o) for r, s, o in FACT.findall(notation.read_text(encoding="utf-8"))]


def read(folder: Path) -> tuple[dict[str, Triples], list[str], list[str]]:
    """Return the triples (subject, relation, object) of each part as numbers, and the names of entities and relations."""
    facts = {part: facts_of(folder, part) for part in ("train", "valid", "test")}
    every = [fact for part in facts.values() for fact in part]
    entities = sorted({name for s, _, o in every for name in (s, o)})
    relations = sorted({r for _, r, _ in every})
    entity, relation = ({name: n for n, name in enumerate(names)} for names in (entities, relations))
    return (
        {part: np.array([(entity[s], relation[r], entity[o]) for s, r, o in own]) for part, own in facts.items()},
        entities,
        relations,
    )


def derived(
    b: tl.GraphBuilder, subject: tl.Tensor, relation: tl.Tensor, entities: int, both: int, body: int
) -> tl.Tensor:
    """Return what rules of one or two facts derive, by their weights, for each question and entity.

    A fact is not derived from itself: r(x, z) <- r(x, z) has no weight, and a walk of two facts stays nowhere. The exception is r(x, x), which
    read backwards is itself: such a fact counts for the rule r(x, z) <- r(z, x).
    """
    facts = b.input("facts", (both, entities, entities), "float32")  # fact(p, x, z), and backwards from both / 2 on
    single = b.gather(b.input("single", (both, both), "float32") * (1 - np.eye(both, dtype="float32")), relation)
    score = b.einsum("np,pnz->nz", single, b.gather(facts, subject, 1))
    if body == 1:
        return score
    away = facts * (1 - np.eye(entities, dtype="float32"))
    walks = away / b.maximum(b.sum(away, -1, keepdims=True), 1.0)  # the chance to be at z by a random p from x
    double = b.gather(b.input("double", (both, both, both), "float32"), relation)
    second = b.einsum("npq,pny->nqy", double, b.gather(walks, subject, 1))
    return score + b.einsum("nqy,qyz->nz", second, walks)


def loss_graph(
    entities: int, relations: int, rank: int, regularization: float, body: int = 0, rule_cost: float = 0.0
) -> tl.EinsumGraph:
    """Build the loss of questions (subject, relation) -> object; relations from ``relations`` on are read backwards."""
    b = tl.GraphBuilder()
    subject, relation, answer = (b.input(name, ("n",), "int64") for name in ("subject", "relation", "answer"))
    real, imaginary = (b.input(f"entity_{part}", (entities, rank), "float32") for part in ("re", "im"))
    r_re, r_im = (b.input(f"relation_{part}", (2 * relations, rank), "float32") for part in ("re", "im"))
    s_re, s_im = b.gather(real, subject), b.gather(imaginary, subject)
    w_re, w_im = b.gather(r_re, relation), b.gather(r_im, relation)
    q_re, q_im = s_re * w_re - s_im * w_im, s_re * w_im + s_im * w_re
    scores = b.einsum("nd,ed->ne", q_re, real) + b.einsum("nd,ed->ne", q_im, imaginary)
    o_re, o_im = b.gather(real, answer), b.gather(imaginary, answer)
    sizes = [
        b.sum(b.power(b.square(x) + b.square(y) + 1e-9, 1.5)) for x, y in ((s_re, s_im), (w_re, w_im), (o_re, o_im))
    ]
    count = b.sum(b.cast(b.equal(answer, answer), "float32"))
    penalty = regularization * (sizes[0] + sizes[1] + sizes[2]) / count
    if body:
        scores = scores + derived(b, subject, relation, entities, 2 * relations, body)
        for name, shape in RULES[:body]:
            penalty = penalty + rule_cost * b.sum(b.abs(b.input(name, (2 * relations,) * shape, "float32")))
    return b.build(loss=b.cross_entropy(scores, answer) + penalty, scores=scores)


RULES = (("single", 2), ("double", 3))  # the weights of rules of one fact and of two, and how many relations each joins


def facts_both_ways(triples: Triples, entities: int, relations: int) -> Any:
    """Return fact(r, s, o) as 0 and 1, with each relation a second time, backwards."""
    s, r, o = triples.T
    facts = np.zeros((2 * relations, entities, entities), "float32")
    facts[r, s, o] = facts[r + relations, o, s] = 1
    return facts


def best_rules(params: dict[str, Any], relations: list[str], count: int) -> list[tuple[str, float]]:
    """Return the rules of most weight, in words; the relation read backwards has its arguments the other way around."""

    def said(n: int, x: str, y: str) -> str:
        forward = n < len(relations)
        return f"{relations[n % len(relations)]}({x}, {y})" if forward else f"{relations[n % len(relations)]}({y}, {x})"

    found = []
    for name, letters in (("single", ("xz",)), ("double", ("xy", "yz"))):
        if name not in params:
            continue
        weights = params[name][: len(relations)]
        for flat in np.argsort(weights, axis=None)[::-1][:count]:
            head, *parts = (int(i) for i in np.unravel_index(flat, weights.shape))
            if parts != [head]:
                body = ", ".join(said(n, *xy) for n, xy in zip(parts, letters, strict=True))
                found.append((f"{said(head, 'x', 'z')} <- {body}", float(weights.flat[flat])))
    return sorted(found, key=lambda rule: -rule[1])[:count]


def questions(triples: Triples, relations: int) -> dict[str, Any]:
    """Return both questions of each fact: r(s, ?) and r(?, o)."""
    s, r, o = triples.T
    return {
        "subject": np.concatenate([s, o]),
        "relation": np.concatenate([r, r + relations]),
        "answer": np.concatenate([o, s]),
    }


def ranks(scores: Any, asked: dict[str, Any], known: dict[tuple[int, int], list[int]]) -> Any:
    """Return the place of the right answer among all that are not known to be right too (the filtered setting)."""
    found = []
    for row, s, r, o in zip(scores, asked["subject"], asked["relation"], asked["answer"], strict=True):
        others = row.copy()
        others[known[int(s), int(r)]] = -np.inf
        better, equal = (others > row[o]).sum(), (others == row[o]).sum()
        found.append(1 + better + equal / 2)  # ties count half, so that a constant score earns nothing
    return np.array(found)


def main(arguments: list[str] | None = None) -> dict[str, dict[str, float]]:
    """Learn, rank, and print the figures without rules and, if they are wanted, with them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--rank", type=int, default=200)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--rate", type=float, default=0.1)
    parser.add_argument("--regularization", type=float, default=0.02)
    parser.add_argument("--rules", type=int, choices=(0, 1, 2), default=0, help="facts in the body of rules; 0 is none")
    parser.add_argument("--rule-cost", type=float, default=3e-4, help="of the size of all weights of rules together")
    parser.add_argument(
        "--rule-rate", type=float, default=0.3, help="of learning the weights of rules, as a share of --rate"
    )
    parser.add_argument("--part", choices=("valid", "test"), default="test", help="facts that are asked for")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    parts, entities, relations = read(options.folder)
    known: dict[tuple[int, int], list[int]] = {}
    for part in parts.values():
        asked = questions(part, len(relations))
        for s, r, o in zip(*asked.values(), strict=True):
            known.setdefault((int(s), int(r)), []).append(int(o))
    asked = questions(parts[options.part], len(relations))
    print(f"{len(parts['train']):,} facts, {len(entities)} entities, {len(relations)} relations")

    found, rows, learned = {}, [], {}
    for name, body in (("ComplEx", 0), ("ComplEx and rules", options.rules))[: 2 if options.rules else 1]:
        graph = loss_graph(len(entities), len(relations), options.rank, options.regularization, body, options.rule_cost)
        params = tl.initial(
            graph, ["entity_re", "entity_im", "relation_re", "relation_im"], "normal", seed=options.seed
        )
        params |= tl.initial(graph, [own for own, _ in RULES[:body]], "zeros")
        fixed = {"facts": facts_both_ways(parts["train"], len(entities), len(relations))} if body else {}
        config = tl.TrainerConfig(
            optimizer=tl.optim.adagrad(options.rate),
            epochs=options.epochs,
            batch_size=options.batch,
            seed=options.seed,
            settings={own: {"rate": options.rule_rate} for own, _ in RULES[:body]},
        )
        trainer = tl.Trainer(tl.Executor(), config)
        start = perf_counter()
        history = trainer.fit(graph, params, questions(parts["train"], len(relations)), fixed=fixed)
        seconds = perf_counter() - start
        scores = trainer.predict({n: asked[n] for n in ("subject", "relation")}, "scores", fixed=fixed)
        places = ranks(scores, asked, known)
        figures = {"MRR": float((1 / places).mean()), **{f"Hits@{k}": float((places <= k).mean()) for k in (1, 3, 10)}}
        found[name], learned = figures, trainer.params
        rows.append(
            [f"{name}, here", *(f"{v:.3f}" for v in figures.values()), f"{history['loss'][-1]:.3f}", f"{seconds:.0f}"]
        )
    if options.folder.name in PUBLISHED:
        rows.append(["ComplEx, published", f"{PUBLISHED[options.folder.name]:.2f}", *[""] * 5])
    heads = [f"filtered, on the {options.part} facts", *figures, "loss", "seconds"]
    print(table(heads, rows, right={1, 2, 3, 4, 5, 6}))
    if options.rules:
        print("\nRules of most weight:")
        for rule, weight in best_rules(learned, relations, 8):
            print(f"{weight:6.2f}  {rule}")
    return found


if __name__ == "__main__":
    main()
