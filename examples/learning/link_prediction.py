"""Which facts are missing? ComplEx embeddings of a knowledge graph, ranked against every other answer.

A fact r(s, o) is scored by embeddings of complex numbers, Re(sum of s r conj(o)): an einsum. The question r(s, ?) is a choice among all
entities, so the loss is a softmax cross entropy; each relation has a second embedding for the question r(?, o). The data are triples of
names, one fact a line, as in ../shared/data/logic/kinship: train.nl, dev.nl, test.nl.

Run it: python examples/learning/link_prediction.py FOLDER [--epochs 60]
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

import numpy as np

import tensorlogic as tl
from tensorlogic.tables import table

PUBLISHED = {"kinship": (0.81, "ComplEx, Trouillon et al. as reported by Minervini et al. 2020")}
FACT = re.compile(r"(\w+)\((\w+),\s*(\w+)\)")
Triples = np.ndarray[Any, Any]


def read(folder: Path) -> tuple[dict[str, Triples], list[str], list[str]]:
    """Return the triples (subject, relation, object) of each part as numbers, and the names of entities and relations."""
    facts = {part: FACT.findall((folder / f"{part}.nl").read_text()) for part in ("train", "dev", "test")}
    every = [fact for part in facts.values() for fact in part]
    entities = sorted({name for _, s, o in every for name in (s, o)})
    relations = sorted({r for r, _, _ in every})
    entity, relation = ({name: n for n, name in enumerate(names)} for names in (entities, relations))
    return (
        {part: np.array([(entity[s], relation[r], entity[o]) for r, s, o in own]) for part, own in facts.items()},
        entities,
        relations,
    )


def loss_graph(entities: int, relations: int, rank: int, regularization: float) -> tl.EinsumGraph:
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
    penalty = (sizes[0] + sizes[1] + sizes[2]) / count
    return b.build(loss=b.cross_entropy(scores, answer) + regularization * penalty, scores=scores)


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


def main(arguments: list[str] | None = None) -> dict[str, float]:
    """Learn, rank, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--rank", type=int, default=200)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--rate", type=float, default=0.1)
    parser.add_argument("--regularization", type=float, default=0.02)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    parts, entities, relations = read(options.folder)
    graph = loss_graph(len(entities), len(relations), options.rank, options.regularization)
    names = ["entity_re", "entity_im", "relation_re", "relation_im"]
    params = tl.initial(graph, names, "normal", seed=options.seed)
    config = tl.TrainerConfig(
        optimizer=tl.optim.adagrad(options.rate), epochs=options.epochs, batch_size=options.batch, seed=options.seed
    )
    trainer = tl.Trainer(tl.Executor(), config)
    history = trainer.fit(graph, params, questions(parts["train"], len(relations)))

    known: dict[tuple[int, int], list[int]] = {}
    for part in parts.values():
        asked = questions(part, len(relations))
        for s, r, o in zip(*asked.values(), strict=True):
            known.setdefault((int(s), int(r)), []).append(int(o))
    asked = questions(parts["test"], len(relations))
    scores = trainer.predict({n: asked[n] for n in ("subject", "relation")}, "scores")
    places = ranks(scores, asked, known)
    found = {"MRR": float((1 / places).mean()), **{f"Hits@{k}": float((places <= k).mean()) for k in (1, 3, 10)}}
    print(
        f"{len(parts['train']):,} facts, {len(entities)} entities, {len(relations)} relations; last loss {history['loss'][-1]:.3f}"
    )
    rows = [["ComplEx here", *(f"{v:.3f}" for v in found.values())]]
    if options.folder.name in PUBLISHED:
        figure, source = PUBLISHED[options.folder.name]
        rows.append([f"published ({source})", f"{figure:.2f}", "", "", ""])
    print(table(["filtered, on the test facts", *found], rows, right={1, 2, 3, 4}))
    return found


if __name__ == "__main__":
    main()
