"""Contractions on the numpy backend beside NumPy's own ways of doing them."""

import numpy as np
from harness import Table, contest

import tensorlogic as tl


def runner(equation: str, algebra: str, *arrays: np.ndarray):
    """Return a call that runs one einsum through the executor."""
    b = tl.GraphBuilder()
    y = b.einsum(equation, *(b.input(f"x{n}", a.shape, str(a.dtype)) for n, a in enumerate(arrays)), algebra=algebra)
    graph, executor = b.build(y=y), tl.Executor()
    inputs = {f"x{n}": a for n, a in enumerate(arrays)}
    return lambda: executor.execute(graph, inputs)


def tables() -> list[Table]:
    rng = np.random.default_rng(0)
    found = []
    a, c, d = (rng.normal(size=s).astype("float32") for s in ((300, 400), (400, 500), (500, 20)))
    found.append(
        contest(
            "Chain of three matrices",
            "float32, 300×400×500×20: the order matters.",
            {
                "NumPy, best order by hand": lambda: a @ (c @ d),
                "Executor.execute": runner("ij,jk,kl->il", "real", a, c, d),
                "np.einsum(optimize=True)": lambda: np.einsum("ij,jk,kl->il", a, c, d, optimize=True),
            },
        )
    )
    for n in (200, 500, 1000):
        x, y = (rng.random((n, n)) < 0.02 for _ in range(2))
        contenders = {
            "NumPy: float32 BLAS, > 0": lambda x=x, y=y: (x.astype("float32") @ y.astype("float32")) > 0,
            "Executor.execute": runner("xy,yz->xz", "boolean", x, y),
        }
        if n <= 500:
            contenders["np.einsum on bool"] = lambda x=x, y=y: np.einsum("xy,yz->xz", x, y)
        note = f"n={n}, density 2%, bool in and out. The packed-bit kernels are not part of this tier."
        found.append(contest(f"Boolean join, n={n}", note, contenders, rounds=9, calls=1 if n > 200 else 0))
    x, y = (rng.random((300, 300)).astype("float32") for _ in range(2))
    found.append(
        contest(
            "Max-min join, n=300",
            "float32; NumPy by broadcasting builds the n³ array.",
            {
                "NumPy by broadcasting": lambda: np.minimum(x[:, :, None], y[None]).max(1),
                "Executor.execute": runner("xy,yz->xz", "max_min", x, y),
            },
            rounds=5,
            calls=1,
        )
    )
    return found
