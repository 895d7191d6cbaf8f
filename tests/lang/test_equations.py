"""Tensor equations against plain NumPy formulas, on the numpy and the reference backend."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from run_program import analysed, lowered, run

import tensorlogic as tl
from tensorlogic.backends import control
from tensorlogic.errors import ConvergenceError, GraphError
from tensorlogic.lang import evaluate

R = np.random.default_rng(0)
V5, W6, K3 = R.normal(size=5), R.normal(size=6), R.normal(size=3)
X56, S55 = R.normal(size=(5, 6)), R.normal(size=(5, 5))
INF = np.inf


def sig(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def relu(x: Any) -> Any:
    return np.maximum(x, 0)


def softmax(x: Any) -> Any:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def lnorm(x: Any) -> Any:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)


DEPT = np.array([[1, 0, 0], [1, 1, 0], [0, 1, 0], [1, 0, 0], [0, 1, 0]], bool)
AGE = np.array([30.0, 41.0, 25.0, 33.0, 60.0])

# name: program, what is asked for, data, expected
CASES: dict[str, tuple[str, str, dict[str, Any], Any]] = {
    "a product projects": ("Y[i] = X[i,j] W[j]", "Y", {"X": X56, "W": W6}, X56 @ W6),
    "a product beside a sum": ("Y[i] = X[i,j] W[j] + B[i]", "Y", {"X": X56, "W": W6, "B": V5}, X56 @ W6 + V5),
    "a bias beside two products": (
        "Y[i] = X[i,j] W[j] + Z[i,j] V[j] - B[i]", "Y", {"X": X56, "W": W6, "Z": S55, "V": V5, "B": V5},
        X56 @ W6 + S55 @ V5 - V5),
    "two products share an index": (
        "Y[i] = tanh(X[i,j] W[j] + Z[i,j] W[j])", "Y", {"X": X56, "Z": X56 * 2, "W": W6}, np.tanh(3 * X56 @ W6)),
    "a term that lacks an index": ("Y[i] = X[i,j] + B[i]", "Y", {"X": X56, "B": V5}, X56.sum(1) + 6 * V5),
    "broadcast": ("Y[i,j] = A[i] + B[j]", "Y", {"A": V5, "B": K3}, V5[:, None] + K3),
    "a call keeps what stands outside": (
        "Y[i] = exp(X[i,j]) W[j]", "Y", {"X": X56, "W": W6}, np.exp(X56) @ W6),
    "a call projects what does not": ("Y[i] = exp(X[i,j])", "Y", {"X": X56}, np.exp(X56.sum(1))),
    "a power of a join": ("K[i,k] = (X[i,j] X[k,j])^3", "K", {"X": X56}, (X56 @ X56.T) ** 3),
    "a power of a difference": (
        "K[i,k] = exp(-(X[i,j] - X[k,j])^2 / Var)", "K", {"X": X56, "Var": 2.0},
        np.exp(-((X56[:, None] - X56[None]) ** 2).sum(-1) / 2)),
    "squares": ("Loss = (Y[e] - P[e])^2", "Loss", {"Y": V5, "P": V5 * 2}, (V5**2).sum()),
    "a quotient of sums": ("P[i] = X[i,j] / (X[i,k] W[k])", "P", {"X": X56, "W": W6}, X56.sum(1) / (X56 @ W6)),
    "the same left side": ("Y[i] = A[i]; Y[i] = 2 A[i]; Y[i] += 1", "Y", {"A": V5}, 3 * V5 + 1),
    "a diagonal": ("Y[i] = X[i,i]", "Y", {"X": S55}, np.diag(S55)),
    "a trace": ("Y = X[i,i]", "Y", {"X": S55}, np.trace(S55)),
    "a diagonal on the left": ("Y[i,i] = X[i]", "Y", {"X": V5}, np.diag(V5)),
    "a constant": ("Y[j] = X[2,j]", "Y", {"X": X56}, X56[2]),
    "constants on the left": (
        "E[n,0,d] = X[n,d]; E[n,1,d] = 2 X[n,d]", "E", {"X": X56}, np.stack([X56, 2 * X56], 1)),
    "anything": ("Y[i] = X[i,_]", "Y", {"X": X56}, X56.sum(1)),
    "a slice is summed": ("Y = sum(X[1:3])", "Y", {"X": V5}, V5[1:3].sum()),
    "a slice by itself": ("Y = X[1:3]", "Y", {"X": V5}, V5[1:3]),
    "a difference of slices": ("Y = X[1:] - X[:4]", "Y", {"X": V5}, np.diff(V5)),
    "a product of slices": ("Y = X[1:3] X[2:4]", "Y", {"X": V5}, V5[1:3] @ V5[2:4]),
    "a slice has the index of the left side": ("Y[i] = X[1:3]", "Y", {"X": V5}, V5[1:3]),
    "slices of one tensor": ("Y[i,j] = X[:2,1:3]", "Y", {"X": X56}, X56[:2, 1:3]),
    "a slice to the end": ("Y[i] = X[2:]", "Y", {"X": V5}, V5[2:]),
    "the greatest of a slice": ("Y[i] max= X[i,1:3]", "Y", {"X": X56}, X56[:, 1:3].max(1)),
    "a shift": ("Y[t+1] = X[t]", "Y", {"X": V5}, np.r_[0, V5]),
    "a shift back": ("Y[t-1] = X[t]", "Y", {"X": V5}, V5[1:]),
    "differences": ("Y[t] = X[t+1] - X[t]", "Y", {"X": V5}, np.diff(V5)),
    "nothing is passed through the function": ("Y[t+1] = sig(X[t])", "Y", {"X": V5}, np.r_[0, sig(V5)]),
    "autocorrelation": ("Y = X[t] X[t+1]", "Y", {"X": V5}, (V5[1:] * V5[:-1]).sum()),
    "reversed": ("Y[i] = X[4-i]", "Y", {"X": V5}, V5[::-1]),
    "every second": ("Y[i] = X[2*i]", "Y", {"X": V5}, V5[::2]),
    "each twice": ("Y[i] = X[i/2] W[i]", "Y", {"X": V5, "W": np.ones(10)}, np.repeat(V5, 2)),
    "spread": ("Y[2*i] = X[i]", "Y", {"X": K3}, [K3[0], 0, K3[1], 0, K3[2]]),
    "a full convolution": ("Y[i+j] = X[i] K[j]", "Y", {"X": V5, "K": K3}, np.convolve(V5, K3)),
    "a valid convolution": ("Y[i] = X[i+j] K[j]", "Y", {"X": V5, "K": K3}, np.correlate(V5, K3, "valid")),
    "a convolution with a stride": (
        "Y[i] = X[2*i+j] K[j]", "Y", {"X": V5, "K": K3}, [V5[:3] @ K3, V5[2:] @ K3]),
    "a dilated convolution": ("Y[i] = X[i+2*j] K[j]", "Y", {"X": V5, "K": K3}, [V5[::2] @ K3]),
    "elements that read beyond are not computed": (
        "Y[i,j] = exp(X[i+j]) W[i] K[j]", "Y", {"X": V5, "W": np.ones(4), "K": np.ones(3)},
        [[np.exp(V5[i + j]) if i + j < 5 else 0 for j in range(3)] for i in range(4)]),
    "an index as a number": ("Y[i] = i X[i]", "Y", {"X": V5}, np.arange(5) * V5),
    "an expectation": ("E = P[x] x", "E", {"P": V5}, V5 @ np.arange(5)),
    "two arguments": ("Y[i] = max(0, X[i])", "Y", {"X": V5}, relu(V5)),
    "the greatest of what is left over": ("Y[i] = max(X[i,j])", "Y", {"X": X56}, X56.max(1)),
    "clip": ("Y[i] = clip(X[i], -0.5, 0.5)", "Y", {"X": V5}, np.clip(V5, -0.5, 0.5)),
    "max=": ("Y[i] max= X[i,j]", "Y", {"X": X56}, X56.max(1)),
    "min=": ("Y[i] min= X[i,j]", "Y", {"X": X56}, X56.min(1)),
    "avg=": ("Y[i] avg= X[i,j]", "Y", {"X": X56}, X56.mean(1)),
    "max= of negative products": ("Y[i] max= X[i,j] W[j]", "Y", {"X": X56, "W": W6}, (X56 * W6).max(1)),
    "min= of a sum": ("Y[i] min= X[i,j] + W[j]", "Y", {"X": X56, "W": W6}, (X56 + W6).min(1)),
    "count=": ("N[d] count= Dept(x,d)", "N", {"Dept": DEPT}, DEPT.sum(0)),
    "the sum of a relation": ("N[d] = Dept(x,d)", "N", {"Dept": DEPT}, DEPT.sum(0)),
    "the mean by group": ("Y[d] avg= Age[x] Dept(x,d)", "Y", {"Age": AGE, "Dept": DEPT}, [104 / 3, 42, 0]),
    "the greatest by group": ("Y[d] max= Age[x] Dept(x,d)", "Y", {"Age": AGE, "Dept": DEPT}, [41, 60, 0]),
    "the least by group": ("Y[d] min= Age[x] Dept(x,d)", "Y", {"Age": AGE, "Dept": DEPT}, [30, 25, 0]),
    "elements by name": ("Age[Alice] = 30; Age[Bob] = 25; Y[x] = Age[x] - 20", "Y", {}, [10, 5]),
    "facts and numbers": (
        "Likes(Alice, Bob); Likes(Bob, Carol); Score[y] = Likes(x,y) W[x]", "Score", {"W": K3[:2]}, K3[:2]),
    "a relation of numbers": ("Y(i) = step(X[i])", "Y", {"X": V5}, V5 > 0),
    "a literal": ("W = [[1, 2], [3, 4]]; Y[i] = W[i,j]", "Y", {}, [3, 7]),
    "literals for columns": ("W[i,1] = [5, 6]; W[i,0] = [1, 2]; Y[i] = W[i,j]", "Y", {}, [6, 8]),
    "a scalar": ("A = 2; B = -1.5; Y[i] = A X[i] ^ A + B", "Y", {"X": V5}, 2 * V5**2 - 1.5),
    "concat of two": ("M[p,k] = concat(A[p,i], B[p])", "M", {"A": X56, "B": V5}, np.c_[X56, V5]),
    "softmax of the only index": ("Y[i.] = softmax(X[i])", "Y", {"X": V5}, softmax(V5)),
    "softmax over the first": ("Y[i.,j] = softmax(X[i,j])", "Y", {"X": X56}, softmax(X56.T).T),
    "a temperature": ("Y[i] = sig(X[i], T)", "Y", {"X": V5, "T": 0.5}, sig(V5 / 0.5)),
    "temperature 0 is deduction": ("T = 0; Y[i] = sig(X[i], T)", "Y", {"X": V5}, (V5 > 0) * 1.0),
    "sum pooling": (
        "S = 2; P[x/S,y/S] = F[x,y]", "P", {"F": X56}, np.pad(X56, ((0, 1), (0, 0))).reshape(3, 2, 3, 2).sum((1, 3))),
    "max pooling": (
        "S = 2; P[x/S,y/S] max= F[x,y]", "P", {"F": X56},
        np.pad(X56, ((0, 1), (0, 0)), constant_values=-INF).reshape(3, 2, 3, 2).max((1, 3))),
    "mean pooling": ("P[x/3] avg= F[x]", "P", {"F": V5}, [V5[:3].mean(), V5[3:].mean()]),
}  # fmt: skip


@pytest.mark.parametrize("backend", ["numpy", "reference"])
@pytest.mark.parametrize("name", CASES)
def test_equations(name: str, backend: str) -> None:
    text, wanted, data, expected = CASES[name]
    found = run(text, wanted, backend=backend, **data)
    assert found.shape == np.shape(expected)
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_large_relations_are_joined_before_they_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluate, "LARGE", 1)
    data = {"P": DEPT, "Q": DEPT.T}
    ways = DEPT.astype(int) @ DEPT.T.astype(int)
    for text, expected in {
        "N[x,z] = P(x,y) Q(y,z)": ways,
        "N[x] count= P(x,y) Q(y,z)": ways.sum(1),
        "N count= P(x,y)": DEPT.sum(),
    }.items():
        np.testing.assert_array_equal(run(text, "N", **data), expected)


def test_products_become_one_einsum() -> None:
    shapes = {"M": (4, 2), "M'": (5, 3), "M''": (6, 2), "C": (2, 3, 2)}
    data = {name: R.normal(size=shape) for name, shape in shapes.items()}
    text = "A[i,j,k] = M[i,p] M'[j,q] M''[k,r] C[p,q,r]"
    graph = lowered(analysed(text, **data), "A")
    assert [node.op.name for node in graph if node.args] == ["einsum"]
    expected = np.einsum("ip,jq,kr,pqr->ijk", *(data[n] for n in ("M", "M'", "M''", "C")))
    np.testing.assert_allclose(run(text, "A", **data), expected)


def test_nodes_remember_the_text() -> None:
    graph = lowered(analysed("A = [1, 2]\nY[i] = exp(A[i])\n"), "Y")
    assert [str(node.location) for node in graph if node.op.name == "exp"] == ["<text>:2:1"]


# recurrences


def perceptron(w: Any, x: Any) -> Any:
    layers = [x]
    for matrix in w[1:]:
        layers.append(sig(matrix @ layers[-1]))
    return np.array(layers)


@pytest.mark.parametrize("backend", ["numpy", "reference"])
def test_multilayer_perceptron(backend: str) -> None:
    w, x = R.normal(size=(4, 5, 5)), V5
    text = "X[i,j] = sig(W[i,j,k] X[i-1,k])"
    np.testing.assert_allclose(run(f"X[0,j] = In[j]\n{text}", "X", backend=backend, W=w, In=x), perceptron(w, x))
    np.testing.assert_allclose(run(text, "X", backend=backend, W=w, X=x[None]), perceptron(w, x))


def states(w: Any, v: Any, u: Any) -> Any:
    found = [np.zeros(len(w))]
    for x in u.T:
        found.append(sig(w @ found[-1] + v @ x))
    return np.array(found).T


@pytest.mark.parametrize("backend", ["numpy", "reference"])
def test_recurrent_network(backend: str) -> None:
    data = {"W": S55, "V": R.normal(size=(5, 5)), "U": R.normal(size=(5, 7))}
    expected = states(data["W"], data["V"], data["U"])
    virtual = "X[i,*t+1] = sig(W[i,j] X[j,*t] + V[i,j] U[j,t])"
    np.testing.assert_allclose(run(virtual, "X", backend=backend, **data), expected[:, -1])
    whole = run(virtual.replace("*", ""), "X", backend=backend, **data)
    np.testing.assert_allclose(whole, expected)
    read = run(f"{virtual}\nO[t] = X[i,*t]", "O", backend=backend, **data)
    np.testing.assert_allclose(read, expected.sum(0))
    for last in ("X[i,*t]", "X[i,7]"):
        found = run(f"{virtual}\nO = {last}", "O", backend=backend, **data)
        np.testing.assert_allclose(found, expected[:, -1].sum())
    scan = next(n.op for n in lowered(analysed(f"{virtual}\nO = X[i,*t]", **data), "O") if n.op.name == "scan")
    assert len(scan.body.outputs) == 1  # no history is kept


def test_virtual_index_without_a_step() -> None:
    d, w, y = R.normal(size=(4, 3)), R.normal(size=(3, 3, 3)), R.normal(size=4)
    text = "N = 2\nX[e,0,j] = D[e,j]\nX[*e,i,j] = sig(W[i,j,k] X[*e,i-1,k])\nLoss = (Y[e] - X[*e,N,j])^2"
    last = sig(sig(d @ w[1].T) @ w[2].T)
    np.testing.assert_allclose(run(text, "Loss", D=d, W=w, Y=y), ((y[:, None] - last) ** 2).sum())


GRAPH_NETWORK = """
L = 3
Emb[n,0,d] = X[n,d]
Z[n,l,d'] = relu(WP[l,d',d] Emb[n,l,d])
Agg[n,l,d] = Neig(n,n') Z[n',l,d]
Emb[n,l+1,d] = relu(WAgg[d,d'] Agg[n,l,d'] + WSelf[d,d'] Emb[n,l,d'])
"""


@pytest.mark.parametrize("backend", ["numpy", "reference"])
def test_graph_network(backend: str) -> None:
    n, d = 5, 4
    x, wp, wa, ws = (R.normal(size=shape) / 2 for shape in ((n, d), (3, d, d), (d, d), (d, d)))
    out, near = R.normal(size=d), R.random((n, n)) < 0.4
    e = x
    for w in wp:
        e = relu(near @ relu(e @ w.T) @ wa.T + e @ ws.T)
    data = {"X": x, "WP": wp, "WAgg": wa, "WSelf": ws, "WOut": out, "Neig": near}
    for text, expected in {
        "Y[n] = sig(WOut[d] Emb[n,L,d])": sig(e @ out),
        "Y[n,n'] = sig(Emb[n,L,d] Emb[n',L,d])": sig(e @ e.T),
        "Y = sig(WOut[d] Emb[n,L,d])": sig((e @ out).sum()),
    }.items():
        np.testing.assert_allclose(run(GRAPH_NETWORK + text, "Y", backend=backend, **data), expected)


TRANSFORMER = """
B = 2; Dk = 2; De = 6; L = 10000
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


def transformer_data() -> tuple[dict[str, Any], Any]:
    blocks, heads, p, d, words, dk, dv, f = 2, 3, 4, 6, 5, 2, 3, 7
    w = {
        "Emb": (words, d), "WQ": (blocks, heads, dk, d), "WK": (blocks, heads, dk, d), "WV": (blocks, heads, dv, d),
        "WS": (blocks, d, heads * dv), "WP": (blocks, f, d), "WF": (blocks, d, f), "WO": (words, d),
    }  # fmt: skip
    data: dict[str, Any] = {name: R.normal(size=shape) for name, shape in w.items()}
    tokens = np.array([1, 0, 3, 2])
    data["X"] = tokens[:, None] == np.arange(words)
    data["Even"] = np.arange(d) % 2 == 0
    data["Odd"] = ~data["Even"]
    place, at = np.arange(p)[:, None], np.arange(d)
    s = data["Emb"][tokens] + np.where(
        at % 2 == 0, np.sin(place / 1e4 ** (at / 6)), np.cos(place / 1e4 ** ((at - 1) / 6))
    )
    for b in range(blocks):
        q, k, v = (np.einsum("hkd,pd->hpk", data[n][b], s) for n in ("WQ", "WK", "WV"))
        a = softmax(np.einsum("hpk,hqk->hpq", q, k) / np.sqrt(dk)) @ v
        mid = lnorm(a.transpose(1, 0, 2).reshape(p, -1) @ data["WS"][b].T + s)
        s = lnorm(relu(mid @ data["WP"][b].T) @ data["WF"][b].T + mid)
    return data, softmax(s @ data["WO"].T)


@pytest.mark.parametrize("backend", ["numpy", "reference"])
def test_transformer(backend: str) -> None:
    data, expected = transformer_data()
    np.testing.assert_allclose(run(TRANSFORMER, "Y", backend=backend, **data), expected)


def test_transformer_is_an_ordinary_graph() -> None:
    data, _ = transformer_data()
    graph = lowered(analysed(TRANSFORMER, **data), "Y")
    assert tl.GraphValidator().validate(graph).is_valid
    assert tl.EinsumGraph.from_text(graph.to_text()) == graph
    kinds = [node.op.name for node in graph]
    assert kinds.count("scan") == 1
    narrow = {n: a.astype("float32") if a.dtype.kind == "f" else a for n, a in data.items()}
    assert run(TRANSFORMER, "Y", **narrow).dtype == np.float32


def test_a_mean_over_neighbours_is_a_recurrence() -> None:
    near, w = R.random((5, 5)) < 0.5, K3
    e = [V5]
    for x in w:
        count = near.sum(1)
        e.append(np.tanh(np.where(count > 0, near @ e[-1] / np.maximum(count, 1), 0) + x))
    text = "E[n,0] = X[n]; M[n,l] avg= Neig(n,n') E[n',l]; E[n,l+1] = tanh(M[n,l] + W[l])"
    np.testing.assert_allclose(run(text, "E", X=V5, Neig=near, W=w), np.array(e).T)


def test_backwards_and_two_steps_back() -> None:
    expected = [0.0]
    for u in V5[:4][::-1]:
        expected.insert(0, 0.5 * expected[0] + u)
    np.testing.assert_allclose(run("B[t] = 0.5 B[t+1] + U[t]", "B", U=V5), expected)
    text = "Fib[0] = 1; Fib[1] = 1; Fib[n+2] = Fib[n+1] + Fib[n]; Y = Fib[10]"
    assert run(text, "Y") == 89
    text = "F[0] = 1; F[n+1] = G[n] + U[n]; G[n] = 2 F[n]"
    expected = [1.0]
    for u in V5:
        expected.append(2 * expected[-1] + u)
    np.testing.assert_allclose(run(text, "F", U=V5), expected)


def test_base_values_at_every_step() -> None:
    expected = [V5[0]]
    for u in V5[1:]:
        expected.append(0.5 * expected[-1] + u)
    np.testing.assert_allclose(run("X[t] = U[t]; X[t+1] = 0.5 X[t] S[t]", "X", U=V5, S=np.ones(5))[:5], expected)


def test_best_path_is_a_scan_of_maxima() -> None:
    score = np.log(R.random((4, 4)))
    best = np.zeros((4, 4))
    for t in range(1, 4):
        best[t] = (best[t - 1][:, None] + score).max(0)
    text = "V[0,y] = Z[y]; V[t+1,y] max= V[t,x] + A[x,y] + O[t,y]"
    found = run(text, "V", Z=np.zeros(4), A=score, O=np.zeros((3, 4)))
    np.testing.assert_allclose(found, best)


# rounds until nothing changes

ROADS = np.full((5, 5), INF)
for _a, _b, _w in [(0, 1, 2.0), (1, 2, 3.0), (0, 2, 9.0), (2, 3, 1.0)]:
    ROADS[_a, _b] = _w


@pytest.mark.parametrize("backend", ["numpy", "reference"])
def test_shortest_paths(backend: str) -> None:
    text = "D[0] = 0\nD[y] min= D[x] + W[x,y]"
    np.testing.assert_array_equal(run(text, "D", backend=backend, W=ROADS), [0, 2, 5, 6, INF])
    text = "D[x,x] = 0\nD[x,y] min= W[x,y]\nD[x,z] min= D[x,y] + D[y,z]"
    np.testing.assert_array_equal(run(text, "D", backend=backend, W=ROADS)[0], [0, 2, 5, 6, INF])


def test_best_products() -> None:
    p = np.zeros((4, 4))
    p[0, 1] = p[1, 2] = 0.5
    p[0, 2], p[2, 0] = 0.1, 0.9
    found = run("B[x,y] max= P[x,y]\nB[x,z] max= B[x,y] P[y,z]", "B", P=p)
    np.testing.assert_allclose(found[0], [0.225, 0.5, 0.25, 0])


def test_sums_settle_or_are_refused() -> None:
    a = np.zeros((4, 4))
    a[0, 1] = a[1, 3] = a[0, 2] = a[2, 3] = 1
    text = "N[x,y] = A[x,y]\nN[x,z] = N[x,y] A[y,z]"
    np.testing.assert_array_equal(run(text, "N", A=a)[0], [0, 1, 1, 2])
    assert run("Y = 1\nY = 0.5 Y", "Y") == 2
    with pytest.raises(ConvergenceError, match="does not settle"):
        run("Y[i] = 2 Y[i] + B[i]", "Y", B=K3)
    assert np.isnan(run("Y[i] = 0.5 Y[i] + B[i]", "Y", B=np.array([1.0, np.nan]))[1])
    with pytest.raises(ConvergenceError) as error:
        run("D[0] = 0\nD[y] min= D[x] + W[x,y]", "D", W=-np.ones((2, 2)))
    assert "did not settle" in str(error.value)
    assert "<text>:1:1" in str(error.value)


@pytest.mark.parametrize("backend", ["numpy", "reference"])
@pytest.mark.parametrize(("factor", "term"), [(-0.9, 0.3), (-0.9, 2.3), (-0.7, 0.7), (-0.3, 0.3)])
def test_numbers_that_only_flip_in_their_last_places_have_settled(backend: str, factor: float, term: float) -> None:
    y = 0.0
    for _ in range(3000):
        y = factor * y + term
    assert factor * y + term != y  # it never stands still
    b = np.array([term, 0.0, np.nan, np.inf])
    found = run("Y[i] = B[i]; Y[i] = A Y[i]", "Y", backend=backend, A=np.array(factor), B=b)
    np.testing.assert_allclose(found, [term / (1 - factor), 0, np.nan, np.nan], rtol=1e-14)


def test_numbers_that_flip_do_not_hide_those_that_creep_on_or_go_round() -> None:
    b = tl.GraphBuilder()
    y, creep = b.input("y", (), "float64"), b.input("creep", (), "float64")
    graph = b.build(y=b.fixpoint(lambda c: b.stack([c[0] * -0.9 + 0.3, c[1] + creep]), b.stack([y, y]), limit=20_000))
    assert tl.Executor().execute(graph, {"y": 0.0, "creep": 0.0})[0] == pytest.approx([0.3 / 1.9, 0])
    with pytest.raises(ConvergenceError, match="did not settle within 20000 rounds"):
        tl.Executor().execute(graph, {"y": 0.0, "creep": 1e-19})
    with pytest.raises(ConvergenceError, match="every 2 rounds its values are the same again"):
        run("Y = 1e-10\nY = 0 - Y", "Y")
    flips, counts = b.fixpoint(lambda c, k: (c * -0.9 + 0.3, (k + 1) % 3), y, b.constant(0))
    several = b.build(flips=flips, counts=counts)
    with pytest.raises(ConvergenceError, match="every 6 rounds its values are the same again"):
        tl.Executor().execute(several, {"y": 0.0})


def test_sums_that_settle_slowly_do_and_those_that_cannot_are_given_up_early() -> None:
    assert run("Y = 1\nY = 0.99 Y", "Y") == pytest.approx(100)
    with pytest.raises(
        ConvergenceError, match="after 10000 rounds its changes shrink too slowly, or not at all"
    ) as error:
        run("Y = 1\nY = Y / 2 + Y / 2", "Y")
    assert "went from 9999 to 10000" in str(error.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("Y = Y + step(10500 - Y)", 10_500),  # changes by 1 in each round, until it does not
        ("Y[i] = S[i] + Y[j] E[j,i]", 1),  # one more element in each round
    ],
)
def test_recursions_whose_changes_do_not_shrink_settle(text: str, value: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "LONG", 300 if "E" in text else control.LONG)
    n = 400
    chain = {"S": np.eye(n)[0], "E": np.eye(n, k=1)} if "E" in text else {}
    assert np.all(run(text, "Y", **chain) == value)


def test_a_limit_of_100_000_rounds_is_a_limit_like_others() -> None:
    b = tl.GraphBuilder()
    graph = b.build(y=b.fixpoint(lambda x: b.minimum(x + 1.0, 10_500.0), b.input("x", (), "float64"), limit=100_000))
    assert tl.Executor().execute(graph, {"x": np.array(0.0)})["y"] == 10_500


def messages(edges: list[tuple[int, int]], psi: Any, phi: Any) -> Any:
    """The marginals by summing over all states."""
    n, k = phi.shape
    joint = np.zeros([k] * n)
    for state in itertools.product(range(k), repeat=n):
        weight = np.prod([phi[i, state[i]] for i in range(n)])
        for a, b in edges:
            weight *= psi[a, b, state[a], state[b]]
        joint[state] = weight
    joint /= joint.sum()
    return np.array([joint.sum(tuple(j for j in range(n) if j != i)) for i in range(n)])


def test_belief_propagation_is_exact_on_a_tree() -> None:
    n, k, edges = 5, 3, [(0, 1), (1, 2), (1, 3), (3, 4)]
    near = np.zeros((n, n), bool)
    psi, phi = R.random((n, n, k, k)) + 0.1, R.random((n, k)) + 0.1
    for a, b in edges:
        near[a, b] = near[b, a] = True
    for a, b in itertools.combinations(range(n), 2):
        psi[b, a] = psi[a, b].T
    text = """
    In[a,b,x] = Neig(c,a) Other[c,b] Msg[c,a,x]
    Msg[a,b,y] = log(Psi[a,b,x,y] Phi[a,x] exp(In[a,b,x]))
    Bel[a,x] = Phi[a,x] exp(Neig(c,a) Msg[c,a,x])
    Marg[a,x] = Bel[a,x] / (Bel[a,y] One[y])
    """
    found = run(text, "Marg", Neig=near, Other=1 - np.eye(n), Psi=psi, Phi=phi, One=np.ones(k))
    np.testing.assert_allclose(found, messages(edges, psi, phi))


def test_bayesian_network() -> None:
    cpt, pa, pb = R.random((2, 3, 2)), R.random(3), R.random(2)
    found = run("PX[x] = CPT[x,a,b] PA[a] PB[b]", "PX", CPT=cpt, PA=pa, PB=pb)
    np.testing.assert_allclose(found, np.einsum("xab,a,b->x", cpt, pa, pb))
    joint = np.einsum("xab,a,b->xa", cpt, pa, pb)
    text = "Joint[q,e] = CPT[q,e,h] PA[e] PB[h]; PE[e] = Joint[q,e]; Post[q] = Joint[q,1] / PE[1]"
    np.testing.assert_allclose(run(text, "Post", CPT=cpt, PA=pa, PB=pb), joint[:, 1] / joint[:, 1].sum())


def test_attention() -> None:
    wq, wk, wv = R.normal(size=(3, 6)), R.normal(size=(3, 6)), R.normal(size=(4, 6))
    text = """
    Dk = 3
    Query[p,dk] = WQ[dk,d] X[p,d]
    Key[p,dk] = WK[dk,d] X[p,d]
    Val[p,dv] = WV[dv,d] X[p,d]
    Comp[p,p'.] = softmax(Query[p,dk] Key[p',dk] / sqrt(Dk))
    Attn[p,dv] = Comp[p,p'] Val[p',dv]
    """
    expected = softmax((X56 @ wq.T) @ (X56 @ wk.T).T / np.sqrt(3)) @ (X56 @ wv.T)
    np.testing.assert_allclose(run(text, "Attn", X=X56, WQ=wq, WK=wk, WV=wv), expected)


def test_relations_in_embedding_space() -> None:
    rng = np.random.default_rng(1)
    emb = rng.normal(size=(50, 1024)) / np.sqrt(1024)
    order = rng.permutation(50)
    relation = np.zeros((50, 50), bool)
    relation[order[:-1], order[1:]] = True
    text = "EmbR[i,j] = R(x,y) Emb[x,i] Emb[y,j]; D[a,b] = EmbR[i,j] Emb[a,i] Emb[b,j]"
    np.testing.assert_array_equal(run(text, "D", R=relation, Emb=emb) > 0.5, relation)
    text = "S[d] = V[x] Emb[x,d]; D[a] = S[d] Emb[a,d]"
    members = (np.arange(50) % 2).astype(float)
    np.testing.assert_allclose(run(text, "D", V=members, Emb=emb), emb @ (members @ emb))


@pytest.mark.parametrize(
    ("text", "wrt", "data"),
    [
        ("X[0,j] = In[j]; X[i,j] = sig(W[i,j,k] X[i-1,k]); Loss = (X[2,j] - T[j])^2", "W",
         {"In": K3, "W": R.normal(size=(3, 3, 3)), "T": np.zeros(3)}),
        ("X[i,*t+1] = tanh(W[i,j] X[j,*t] + V[i,j] U[j,t]); Loss = X[i,*t]^2", "W",
         {"W": R.normal(size=(3, 3)), "V": np.eye(3), "U": R.normal(size=(3, 3))}),
        ("F[x] = relu(K[dx] I[x+dx]); P[x/2] max= F[x]; Loss = P[x]^2", "K", {"K": K3, "I": W6}),
        ("A[i,j] = M[i,p] M'[j,q] C[p,q]; Loss = (A[i,j] - T[i,j])^2", "C",
         {"M": R.normal(size=(4, 2)), "M'": R.normal(size=(5, 3)), "C": R.normal(size=(2, 3)), "T": np.ones((4, 5))}),
        ("Y[x] = B[x]; Y[x] = 0.3 tanh(W[x,y] Y[y]); Loss = Y[x]^2", "W",
         {"B": K3, "W": R.normal(size=(3, 3)) / 3}),
    ],
)  # fmt: skip
def test_gradients(text: str, wrt: str, data: dict[str, Any]) -> None:
    graph = lowered(analysed(text, **data), "Loss")
    found = tl.Executor().execute(tl.grad(graph, wrt=[wrt]), data)[0]
    step, expected = 1e-6, np.zeros_like(data[wrt])
    for place in np.ndindex(expected.shape):
        values = []
        for sign in (1, -1):
            moved = data[wrt].copy()
            moved[place] += sign * step
            values.append(float(run(text, "Loss", **{**data, wrt: moved})))
        expected[place] = (values[0] - values[1]) / (2 * step)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)


def test_attached_functions() -> None:
    found = run("Y[i] = cube(X[i,j] W[j])", "Y", functions={"cube": lambda x: x * x * x}, X=X56, W=W6)
    np.testing.assert_allclose(found, (X56 @ W6) ** 3)
    with pytest.raises(GraphError, match="returns a tensor of shape"):
        run("Y[i] = total(X[i])", "Y", functions={"total": lambda x: x.sum()}, X=V5)


MISTAKES: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "a normaliser without its index": ("Y[i,j] = softmax(X[i,j])", {"X": X56}, "E690", "no dotted index"),
    "a wrong number of arguments": ("Y[i] = exp(X[i], X[i])", {"X": V5}, "E689", "exp takes 1 argument, got 2"),
    "concat without an index": ("Y[i] = concat(X[i,j])", {"X": X56}, "E692", "concat needs one index"),
    "max= onto a sum": ("Y[i+j] max= X[i,j]", {"X": X56}, "E693", "max= with an index like this"),
    "an index without a size": ("X[i,t+1] = W[i,j] X[j,t]", {"W": S55}, "E679", "nothing fixes the size of index 't'"),
    "a circle without a step": ("Y[i] avg= W[i,j] Y[j]", {"W": S55}, "E681", "an aggregate (avg=) stands in a circle"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(name: str) -> None:
    text, data, code, message = MISTAKES[name]
    with pytest.raises(GraphError) as error:
        run(text, text[0], **data)
    assert error.value.diagnostic.code == code
    assert message in error.value.diagnostic.message
    assert error.value.diagnostic.location is not None
    assert error.value.diagnostic.location.line == 1
