"""Tucker decomposition, learned: A[i,j,k] = M[i,p] M'[j,q] M''[k,r] C[p,q,r], from some elements of A with noise.

The equation is one einsum and the loss the squared error of the elements that are seen, so the trainer finds the factors by gradient steps
alone. Where all of A is seen, the usual answer is the higher-order SVD (De Lathauwer et al. 2000), which NumPy computes below; where part of
A is missing, HOSVD has no value to put there, and what is learned still fills it in. Run it: python examples/learning/tucker.py
"""

from __future__ import annotations

import argparse
from time import perf_counter
from typing import Any

import numpy as np

import tensorlogic as tl
from tensorlogic.tables import table

Array = np.ndarray[Any, Any]
EQUATION = "ip,jq,kr,pqr->ijk"


def tensor_and_truth(size: int, rank: int, noise: float, seed: int) -> tuple[Array, Array]:
    """Return a tensor of a known rank with noise, and without."""
    rng = np.random.default_rng(seed)
    factors = [np.linalg.qr(rng.normal(size=(size, rank)))[0] for _ in range(3)]
    truth = np.einsum(EQUATION, *factors, rng.normal(size=(rank, rank, rank)))
    truth /= truth.std()
    return (truth + noise * rng.normal(size=truth.shape)).astype("float32"), truth.astype("float32")


def hosvd(a: Array, rank: int) -> Array:
    """Return the best-known direct answer: singular vectors of A laid flat along each axis, and A seen through them."""
    flat = [np.moveaxis(a, axis, 0).reshape(a.shape[axis], -1) for axis in range(3)]
    factors = [np.linalg.svd(own, full_matrices=False)[0][:, :rank] for own in flat]
    core = np.einsum("ijk,ip,jq,kr->pqr", a, *factors, optimize=True)
    found: Array = np.einsum(EQUATION, *factors, core, optimize=True)
    return found


def loss_graph(size: int, rank: int) -> tl.EinsumGraph:
    """Build the squared error of the decomposition where elements are seen; the factors are M, M1, M2 and C."""
    b = tl.GraphBuilder()
    a, seen = (b.input(name, ("n", size, size), "float32") for name in ("a", "seen"))
    row = b.input("row", ("n",), "int64")
    m, m1, m2 = (b.input(name, (size, rank), "float32") for name in ("M", "M1", "M2"))
    whole = b.einsum(EQUATION, b.gather(m, row), m1, m2, b.input("C", (rank, rank, rank), "float32"))
    return b.build(loss=b.mean_squared_error(whole, a, weights=seen), whole=whole)


def relative_error(found: Array, truth: Array) -> float:
    return float(np.linalg.norm(found - truth) / np.linalg.norm(truth))


def learn(a: Array, seen: Array, rank: int, epochs: int, rate: float, seed: int) -> Array:
    """Learn the factors from the elements that are seen, and return the tensor they give."""
    size = len(a)
    graph = loss_graph(size, rank)
    params = tl.initial(graph, ["M", "M1", "M2", "C"], {"C": "glorot_normal", "*": "orthogonal"}, seed=seed)
    config = tl.TrainerConfig(
        optimizer=tl.optim.adam(tl.optim.cosine(rate, steps=epochs)), epochs=epochs, batch_size=size, seed=seed
    )
    trainer = tl.Trainer(tl.Executor(), config)
    data = {"a": a, "seen": seen.astype("float32"), "row": np.arange(size)}
    trainer.fit(graph, params, data)
    found: Array = trainer.predict({"row": data["row"]}, "whole")
    return found


def main(arguments: list[str] | None = None) -> dict[str, float]:
    """Decompose a tensor that is seen whole, and one of which most is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=30)
    parser.add_argument("--rank", type=int, default=4)
    parser.add_argument("--noise", type=float, default=0.1)
    parser.add_argument("--missing", type=float, default=0.7)
    parser.add_argument("--epochs", type=int, default=2000)
    parser.add_argument("--rate", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    a, truth = tensor_and_truth(options.size, options.rank, options.noise, options.seed)
    some = np.random.default_rng(options.seed + 1).random(a.shape) >= options.missing
    start = perf_counter()
    found = {
        "noise alone": relative_error(a, truth),
        "HOSVD (NumPy), all seen": relative_error(hosvd(a, options.rank), truth),
        "learned, all seen": relative_error(
            learn(a, np.ones_like(some), options.rank, options.epochs, options.rate, options.seed), truth
        ),
        "HOSVD, zeros for what is missing": relative_error(hosvd(np.where(some, a, 0), options.rank), truth),
        "learned from what is seen": relative_error(
            learn(a, some, options.rank, options.epochs, options.rate, options.seed), truth
        ),
    }
    print(
        f"{options.size} by {options.size} by {options.size} of rank {options.rank}; {options.missing:.0%} missing in the last two; "
        f"{perf_counter() - start:.0f} s"
    )
    print(table(["error against the truth", "relative"], [[k, f"{v:.4f}"] for k, v in found.items()], right={1}))
    return found


if __name__ == "__main__":
    main()
