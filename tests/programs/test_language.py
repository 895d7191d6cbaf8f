"""The programs of the language's page, each against a plain NumPy formula, on every engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pytest
from engines import ENGINES, program

import tensorlogic as tl

rng = np.random.default_rng(14)
Arrays = Mapping[str, Any]


def sig(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def relu(x: Any) -> Any:
    return np.maximum(x, 0)


def softmax(x: Any, axis: int = -1) -> Any:
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


def lnorm(x: Any) -> Any:
    """Layer norm over the last axis, without a scale: the mean 0, the variance 1."""
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)


def normal(*shape: int) -> Any:
    return rng.normal(size=shape) * 0.5


class Case(NamedTuple):
    """A program, what is bound to it, and what its tensors are."""

    text: str
    inputs: Arrays
    expected: Callable[[Arrays], dict[str, Any]]


CASES: dict[str, Case] = {}


def case(name: str, text: str, inputs: Arrays, expected: Callable[[Arrays], dict[str, Any]]) -> None:
    CASES[name] = Case(text, inputs, expected)


# the perceptron

PERCEPTRON = "W = [0.2, 1.9, -0.7, 3]\nX = [0, 1, 1, 0]\n"
case("perceptron", PERCEPTRON + "Y = step(W[i] X[i])", {}, lambda _: {"Y": 1})
case("perceptron, element by element", PERCEPTRON + "Y[i] = step(W[i] X[i])", {}, lambda _: {"Y": [0, 1, 0, 0]})


# layers and recurrences


def mlp(a: Arrays) -> dict[str, Any]:
    x = [a["In"]]
    for w in a["W"][1:]:
        x.append(sig(w @ x[-1]))
    return {"X": np.array(x)}


case(
    "multilayer perceptron",
    "X[0,j] = In[j]\nX[i,j] = sig(W[i,j,k] X[i-1,k])",
    {"W": normal(4, 5, 5), "In": normal(5)},
    mlp,
)


def rnn(a: Arrays) -> dict[str, Any]:
    x = np.zeros(len(a["W"]))
    for t in range(a["U"].shape[1]):
        x = sig(a["W"] @ x + a["V"] @ a["U"][:, t])
    return {"Last": x, "Sum": x.sum()}


RNN = {"W": normal(3, 3), "V": normal(3, 2), "U": normal(2, 6)}
case(
    "recurrent network, one slice kept",
    "X[i,*t+1] = sig(W[i,j] X[j,*t] + V[i,j] U[j,t])\nLast[i] = X[i,*t]\nSum = X[i,*t]",
    RNN,
    rnn,
)


def rnn_history(a: Arrays) -> dict[str, Any]:
    x = [np.zeros(len(a["W"]))]
    for t in range(a["U"].shape[1]):
        x.append(sig(a["W"] @ x[-1] + a["V"] @ a["U"][:, t]))
    return {"X": np.array(x).T}


case("recurrent network, every slice", "X[i,t+1] = sig(W[i,j] X[j,t] + V[i,j] U[j,t])", RNN, rnn_history)
case(
    "recurrent network from a given state",
    "X[i,0] = X0[i]\nX[i,t+1] = sig(W[i,j] X[j,t] + V[i,j] U[j,t])",
    {**RNN, "X0": normal(3)},
    lambda a: {"X": _from_state(a)},
)


def _from_state(a: Arrays) -> Any:
    x = [a["X0"]]
    for t in range(a["U"].shape[1]):
        x.append(sig(a["W"] @ x[-1] + a["V"] @ a["U"][:, t]))
    return np.array(x).T


case(
    "squared loss",
    "N = 2\nLoss = (Y[e] - X[*e,N,j])^2",
    {"Y": normal(6), "X": normal(6, 3, 4)},
    lambda a: {"Loss": ((a["Y"][:, None] - a["X"][:, 2, :]) ** 2).sum()},
)
case(
    "squared loss of a network",
    """N = 2
       X[e,0,j] = In[e,j]
       X[e,i,j] = sig(W[i,j,k] X[e,i-1,k])
       Loss = (Y[e,j] - X[e,N,j])^2""",
    {"W": normal(3, 4, 4), "In": normal(5, 4), "Y": normal(5, 4)},
    lambda a: {"Loss": ((a["Y"] - sig(sig(a["In"] @ a["W"][1].T) @ a["W"][2].T)) ** 2).sum()},
)

# decompositions, convolution, pooling

case(
    "Tucker decomposition",
    "A[i,j,k] = M[i,p] M'[j,q] M''[k,r] C[p,q,r]",
    {"M": normal(4, 2), "M'": normal(5, 3), "M''": normal(6, 2), "C": normal(2, 3, 2)},
    lambda a: {"A": np.einsum("ip,jq,kr,pqr->ijk", a["M"], a["M'"], a["M''"], a["C"])},
)


def convolution(a: Arrays) -> dict[str, Any]:
    windows = np.lib.stride_tricks.sliding_window_view(a["Image"], a["Filter"].shape[:2], axis=(0, 1))
    return {"Features": relu(np.einsum("xycuv,uvc->xy", windows, a["Filter"]))}


IMAGE = {"Image": normal(9, 8, 3), "Filter": normal(4, 3, 3)}
CONVOLUTION = "Features[x,y] = relu(Filter[dx,dy,ch] Image[x+dx,y+dy,ch])\n"
case("convolution", CONVOLUTION, IMAGE, convolution)


def pooled(a: Arrays, how: Any) -> Any:
    f = convolution(a)["Features"]
    return how(f.reshape(3, 2, 3, 2), axis=(1, 3))


case(
    "sum pooling",
    CONVOLUTION + "S = 2\nPooled[x/S,y/S] = Features[x,y]",
    IMAGE,
    lambda a: {"Pooled": pooled(a, np.sum)},
)
case(
    "max pooling",
    CONVOLUTION + "S = 2\nPooled[x/S,y/S] max= Features[x,y]",
    IMAGE,
    lambda a: {"Pooled": pooled(a, np.max)},
)
case(
    "pooling of an odd length",
    "Pooled[x/2] = F[x]\nTop[x/2] max= F[x]\nMean[x/2] avg= F[x]",
    {"F": np.array([1.0, -2.0, -3.0, -4.0, -5.0])},
    lambda a: {"Pooled": [-1.0, -7.0, -5.0], "Top": [1.0, -3.0, -5.0], "Mean": [-0.5, -3.5, -5.0]},
)

# the graph network

GNN = """
L = 2
Emb[n,0,d] = X[n,d]
Z[n,l,d'] = relu(WP[l,d',d] Emb[n,l,d])
Agg[n,l,d] = Neig(n,n') Z[n',l,d]
Emb[n,l+1,d] = relu(WAgg[d,d'] Agg[n,l,d'] + WSelf[d,d'] Emb[n,l,d'])
"""


def gnn(a: Arrays) -> Any:
    emb = a["X"]
    for wp in a["WP"]:
        z = relu(emb @ wp.T)
        agg = a["Neig"].astype(float) @ z
        emb = relu(agg @ a["WAgg"].T + emb @ a["WSelf"].T)
    return emb


GRAPH = {
    "X": normal(6, 4), "WP": normal(2, 4, 4), "Neig": rng.random((6, 6)) < 0.4, "WAgg": normal(4, 4),
    "WSelf": normal(4, 4), "WOut": normal(4),
}  # fmt: skip
case("graph network, nodes", GNN + "Y[n] = sig(WOut[d] Emb[n,L,d])", GRAPH, lambda a: {"Y": sig(gnn(a) @ a["WOut"])})
case(
    "graph network, edges",
    GNN + "Y[n,n'] = sig(Emb[n,L,d] Emb[n',L,d])",
    {name: value for name, value in GRAPH.items() if name != "WOut"},
    lambda a: {"Y": sig(gnn(a) @ gnn(a).T)},
)
case(
    "graph network, the graph",
    GNN + "Y = sig(WOut[d] Emb[n,L,d])",
    GRAPH,
    lambda a: {"Y": sig((gnn(a) @ a["WOut"]).sum())},
)

# attention and a transformer

ATTENTION = """
Dk = 4
Query[p,dk] = WQ[dk,d] X[p,d]
Key[p,dk] = WK[dk,d] X[p,d]
Val[p,dv] = WV[dv,d] X[p,d]
Comp[p,p'.] = softmax(Query[p,dk] Key[p',dk] / sqrt(Dk))
Attn[p,dv] = Comp[p,p'] Val[p',dv]
"""


def attention(a: Arrays) -> dict[str, Any]:
    q, k, v = a["X"] @ a["WQ"].T, a["X"] @ a["WK"].T, a["X"] @ a["WV"].T
    comp = softmax(q @ k.T / np.sqrt(4))
    return {"Comp": comp, "Attn": comp @ v}


case(
    "attention",
    ATTENTION,
    {"X": normal(5, 6), "WQ": normal(4, 6), "WK": normal(4, 6), "WV": normal(3, 6)},
    attention,
)

TRANSFORMER = """
B = 2; L = 10000; De = 6; Dk = 2
EmbX[p,d] = X(p,t) Emb[t,d]
PosEnc[p,d] = Even(d) sin(p/L^(d/De)) + Odd(d) cos(p/L^((d-1)/De))
Stream[0,p,d] = EmbX[p,d] + PosEnc[p,d]
Query[b,h,p,dk] = WQ[b,h,dk,d] Stream[b,p,d]
Key[b,h,p,dk] = WK[b,h,dk,d] Stream[b,p,d]
Val[b,h,p,dv] = WV[b,h,dv,d] Stream[b,p,d]
Comp[b,h,p,p'.] = softmax(Query[b,h,p,dk] Key[b,h,p',dk] / sqrt(Dk))
Attn[b,h,p,dv] = Comp[b,h,p,p'] Val[b,h,p',dv]
Merge[b,p,dm] = concat(Attn[b,h,p,dv])
Mid[b,p,d.] = lnorm(WS[b,d,dm] Merge[b,p,dm] + Stream[b,p,d])
Hid[b,p,f] = relu(WP[b,f,d] Mid[b,p,d])
Stream[b+1,p,d.] = lnorm(WF[b,d,f] Hid[b,p,f] + Mid[b,p,d])
Y[p,t.] = softmax(WO[t,d] Stream[B,p,d])
"""
BLOCKS, HEADS, LENGTH, WORDS, DE, DK, DV, FF = 2, 3, 5, 7, 6, 2, 2, 8
TRANSFORMER_INPUTS = {
    "X": np.eye(WORDS, dtype=bool)[rng.integers(0, WORDS, LENGTH)],
    "Emb": normal(WORDS, DE), "Even": np.arange(DE) % 2 == 0, "Odd": np.arange(DE) % 2 == 1,
    "WQ": normal(BLOCKS, HEADS, DK, DE), "WK": normal(BLOCKS, HEADS, DK, DE), "WV": normal(BLOCKS, HEADS, DV, DE),
    "WS": normal(BLOCKS, DE, HEADS * DV), "WP": normal(BLOCKS, FF, DE), "WF": normal(BLOCKS, DE, FF), "WO": normal(WORDS, DE),
}  # fmt: skip


def positions() -> Any:
    p, d = np.arange(LENGTH)[:, None], np.arange(DE)[None]
    return np.where(d % 2 == 0, np.sin(p / 10000 ** (d / DE)), np.cos(p / 10000 ** ((d - 1) / DE)))


def transformer(a: Arrays) -> dict[str, Any]:
    stream = a["X"].astype(float) @ a["Emb"] + positions()
    for b in range(BLOCKS):
        q, k, v = (np.einsum("hkd,pd->hpk", a[w][b], stream) for w in ("WQ", "WK", "WV"))
        attn = softmax(q @ k.transpose(0, 2, 1) / np.sqrt(DK)) @ v
        merge = attn.transpose(1, 0, 2).reshape(LENGTH, HEADS * DV)
        mid = lnorm(merge @ a["WS"][b].T + stream)
        stream = lnorm(relu(mid @ a["WP"][b].T) @ a["WF"][b].T + mid)
    return {"Y": softmax(stream @ a["WO"].T), "PosEnc": positions()}


case("transformer", TRANSFORMER, TRANSFORMER_INPUTS, transformer)

# kernel machines

MACHINE = "Y[q] = sig(A[i] T[i] K[q,i] + B)"
POINTS = {"X": normal(5, 3), "A": normal(5), "T": np.sign(normal(5)), "B": 0.3}


def machine(a: Arrays, kernel: Any) -> dict[str, Any]:
    return {"K": kernel, "Y": sig(kernel @ (a["A"] * a["T"]) + a["B"])}


case(
    "kernel machine, polynomial",
    "N = 3\nK[i,i'] = (X[i,j] X[i',j])^N\n" + MACHINE,
    POINTS,
    lambda a: machine(a, (a["X"] @ a["X"].T) ** 3),
)
case(
    "kernel machine, Gaussian",
    "Var = 0.7\nK[i,i'] = exp(-(X[i,j]-X[i',j])^2/Var)\n" + MACHINE,
    POINTS,
    lambda a: machine(a, np.exp(-((a["X"][:, None] - a["X"][None]) ** 2).sum(-1) / 0.7)),
)

# probabilities


def distribution(*shape: int) -> Any:
    """A conditional table: over its first axis it sums to 1."""
    given = rng.random(shape) + 0.1
    return given / given.sum(0)


case(
    "Bayesian network, one node",
    "PX[x] = CPT[x,a,b] PA[a] PB[b]",
    {"CPT": distribution(3, 2, 4), "PA": distribution(2), "PB": distribution(4)},
    lambda a: {"PX": np.einsum("xab,a,b->x", a["CPT"], a["PA"], a["PB"])},
)
SPRINKLER = """
Joint[r,e] = PC[c] PS[s,c] PR[r,c] PW[w,s,r] Seen[w,e]
Evidence[e] = Joint[r,e]
Posterior[r,e] = Joint[r,e] / Evidence[e]
"""


def sprinkler(a: Arrays) -> dict[str, Any]:
    joint = np.zeros((2, 2))
    for c, s, r, w in np.ndindex(2, 2, 2, 2):
        joint[r, w] += a["PC"][c] * a["PS"][s, c] * a["PR"][r, c] * a["PW"][w, s, r]
    return {"Evidence": joint.sum(0), "Posterior": joint / joint.sum(0)}


case(
    "Bayesian network, P(Q|E)",
    SPRINKLER,
    {
        "PC": distribution(2),
        "PS": distribution(2, 2),
        "PR": distribution(2, 2),
        "PW": distribution(2, 2, 2),
        "Seen": np.eye(2),
    },
    sprinkler,
)

TREE = [(0, 1), (1, 2), (1, 3), (3, 4)]  # a tree of five variables with three values each
BELIEF = """
In[u,v,a] = Edge(k,u) Other(k,v) L[k,u,a]
L[u,v,b] = log(Psi[u,v,a,b] exp(Phi[u,a] + In[u,v,a]))
P[v,b.] = softmax(Phi[v,b] + Edge(u,v) L[u,v,b])
"""


def tree_inputs() -> dict[str, Any]:
    edge, psi = np.zeros((5, 5), bool), np.ones((5, 5, 3, 3))
    for u, v in TREE:
        edge[u, v] = edge[v, u] = True
        psi[u, v] = rng.random((3, 3)) + 0.2
        psi[v, u] = psi[u, v].T
    return {"Edge": edge, "Other": ~np.eye(5, dtype=bool), "Psi": psi, "Phi": normal(5, 3)}


def marginals(a: Arrays) -> dict[str, Any]:
    """Every assignment in turn."""
    found = np.zeros((5, 3))
    for values in np.ndindex(3, 3, 3, 3, 3):
        weight = np.exp(sum(a["Phi"][v, k] for v, k in enumerate(values)))
        for u, v in TREE:
            weight *= a["Psi"][u, v, values[u], values[v]]
        for v, k in enumerate(values):
            found[v, k] += weight
    return {"P": found / found.sum(1, keepdims=True)}


case("belief propagation by recursion", BELIEF, tree_inputs(), marginals)
case(
    "belief propagation in rounds",
    """In[t,u,v,a] = Edge(k,u) Other(k,v) L[t,k,u,a]
       L[t+1,u,v,b] = Round[t] log(Psi[u,v,a,b] exp(Phi[u,a] + In[t,u,v,a]))
       T = 5
       P[v,b.] = softmax(Phi[v,b] + Edge(u,v) L[T,u,v,b])""",
    {**tree_inputs(), "Round": np.ones(5)},
    marginals,
)

# reasoning in embedding space

OBJECTS = rng.normal(size=(10, 64)) / 8
case(
    "a set in embedding space",
    "S[d] = V[x] Emb[x,d]\nD[a] = S[d] Emb[a,d]",
    {"V": np.array([1.0, 0, 1, 1, 0, 0, 0, 0, 0, 0]), "Emb": OBJECTS},
    lambda a: {"S": a["V"] @ a["Emb"], "D": a["Emb"] @ (a["V"] @ a["Emb"])},
)
case(
    "similar objects",
    "Sim[x,x'] = Emb[x,d] Emb[x',d]",
    {"Emb": OBJECTS},
    lambda a: {"Sim": a["Emb"] @ a["Emb"].T},
)
EMBEDDED = "EmbR[i,j] = R(x,y) Emb[x,i] Emb[y,j]\nD[a,b] = EmbR[i,j] Emb[a,i] Emb[b,j]\n"


def relation_of_49() -> dict[str, Any]:
    own = np.random.default_rng(49)
    r = np.zeros((50, 50), bool)
    r.flat[own.choice(2500, 49, replace=False)] = True
    return {"R": r, "Emb": own.choice([-1.0, 1.0], size=(50, 1024)) / 32}


case(
    "a relation in embedding space",
    EMBEDDED + "Found[a,b] = step(D[a,b] - 0.5)",
    relation_of_49(),
    lambda a: {"Found": a["R"].astype(float)},
)
for temperature in (0.0, 0.05, 1.0):
    case(
        f"a rule's sigmoid at T = {temperature}",
        EMBEDDED + f"T = {temperature}\nFound[a,b] = sig(D[a,b] - 0.5, T)",
        relation_of_49(),
        lambda a, t=temperature: {"Found": tempered(a, t)},
    )


def small_relation() -> dict[str, Any]:
    """Five objects whose vectors are at right angles: for the reference backend, which goes through every term in Python."""
    hadamard = np.array([[(-1.0) ** bin(i & j).count("1") for j in range(8)] for i in range(8)]) / np.sqrt(8)
    return {"R": np.eye(5, k=1, dtype=bool) | np.eye(5, k=-3, dtype=bool), "Emb": hadamard[:5]}


def tempered(a: Arrays, t: float) -> Any:
    if t == 0:
        return a["R"].astype(float)
    gram = a["Emb"] @ a["Emb"].T
    return sig((gram @ a["R"].astype(float) @ gram - 0.5) / t)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", CASES)
def test_paper(name: str, engine: str) -> None:
    chosen = CASES[name]
    small = engine == "reference" and chosen.text.startswith(EMBEDDED)
    inputs = small_relation() if small else chosen.inputs
    outputs = program(chosen.text, engine).run(**inputs)
    for tensor, expected in chosen.expected(inputs).items():
        np.testing.assert_allclose(
            np.asarray(outputs[tensor], float), np.asarray(expected, float), rtol=1e-6, atol=1e-9, err_msg=tensor
        )


# the graphs of the programs, on the tiers of the plain executor

LEVELS = tl.OptimizationLevel


def compiled(graph: Any, inputs: Arrays, level: tl.OptimizationLevel) -> Any:
    ex = tl.Executor()
    return ex.execute_compiled(ex.compile_graph(graph, tl.CompilationConfig(optimization_level=level)), inputs)


def hot(graph: Any, inputs: Arrays) -> Any:
    ex = tl.Executor()
    return [ex.execute_jit(graph, inputs) for _ in range(60)][-1]


TIERS: dict[str, Callable[[Any, Arrays], Any]] = {
    **{n.name: lambda g, x, n=n: tl.Executor(optimization_level=n).execute(g, x) for n in LEVELS if n is not LEVELS.STANDARD},
    "compiled": lambda g, x: compiled(g, x, LEVELS.STANDARD),
    "compiled, AGGRESSIVE": lambda g, x: compiled(g, x, LEVELS.AGGRESSIVE),
    "JIT": hot,
}  # fmt: skip


SLOW = ("compiled, AGGRESSIVE", "JIT")  # each compiles machine code


@pytest.mark.parametrize("tier", [pytest.param(t, marks=pytest.mark.full) if t in SLOW else t for t in TIERS])
@pytest.mark.parametrize("name", CASES)
def test_paper_on_every_tier(name: str, tier: str) -> None:
    text, inputs, expected = CASES[name]
    wanted = expected(inputs)
    graph = tl.Program(text).graph(*wanted, inputs=inputs)
    outputs = TIERS[tier](graph, {n: inputs[n] for n in graph.inputs})
    for tensor, value in wanted.items():
        got = np.asarray(outputs[tensor], float)
        np.testing.assert_allclose(got, np.asarray(value, float), rtol=1e-6, atol=1e-9, err_msg=tensor)


# the logic programs


@pytest.mark.parametrize("engine", ENGINES)
def test_ancestors(engine: str) -> None:
    p = program(
        """Parent(Bob,Charlie); Ancestor(Alice,Bob)
           Ancestor(x,y) <- Parent(x,y)
           Ancestor(x,z) <- Ancestor(x,y), Parent(y,z)""",
        engine,
    )
    assert list(p.query("Ancestor(Alice,x)?")) == [("Bob",), ("Charlie",)]
    assert set(p.relation("Ancestor")) == {("Bob", "Charlie"), ("Alice", "Bob"), ("Alice", "Charlie")}


@pytest.mark.parametrize("engine", ENGINES)
def test_two_witnesses_still_give_one(engine: str) -> None:
    p = program(
        """Sister(Ann,Bob); Sister(Ann,Cid); Parent(Bob,Dan); Parent(Cid,Dan)
           Aunt(x,z) <- Sister(x,y), Parent(y,z)""",
        engine,
    )
    assert list(p.relation("Aunt")) == [("Ann", "Dan")]
    dense = np.asarray(p.relation("Aunt").dense())
    assert dense.dtype == bool and dense.sum() == 1
    total = program(
        """Sister(Ann,Bob); Sister(Ann,Cid); Parent(Bob,Dan); Parent(Cid,Dan)
           Ways[x,z] = Sister(x,y) Parent(y,z)""",
        engine,
    )
    assert np.asarray(total.run()["Ways"]).max() == 2  # brackets on the left: numbers


@pytest.mark.parametrize("engine", ENGINES)
def test_text_file_becomes_positions_and_words(engine: str, tmp_path: Any) -> None:
    path = tmp_path / "text.txt"
    path.write_text("Alice loves Bob\n", encoding="utf-8")
    p = program(f'M(p,w) = "{path}"', engine)
    assert list(p.relation("M")) == [(0, "Alice"), (1, "loves"), (2, "Bob")]
    assert list(p.query("M(1,w)?")) == [("loves",)]
    assert list(p.query("M(p,Bob)?")) == [(2,)]
