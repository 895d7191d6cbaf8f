"""The optimizers in plain NumPy: each takes a parameter, its slope, what it keeps and the number of the step, from 1 on."""

import numpy as np

RATE = 0.05


def sgd(w, g, s, t):
    return w - RATE * g


def momentum(w, g, s, t):
    s["v"] = 0.9 * s.get("v", 0) + g
    return w - RATE * s["v"]


def nesterov(w, g, s, t):
    s["v"] = 0.9 * s.get("v", 0) + g
    return w - RATE * (g + 0.9 * s["v"])


def adam(w, g, s, t, decay=0.0):
    s["m"] = 0.9 * s.get("m", 0) + 0.1 * g
    s["v"] = 0.999 * s.get("v", 0) + 0.001 * g * g
    m, v = s["m"] / (1 - 0.9**t), s["v"] / (1 - 0.999**t)
    return w - RATE * decay * w - RATE * m / (np.sqrt(v) + 1e-8)


def adamw(w, g, s, t):
    return adam(w, g, s, t, 0.01)


def rmsprop(w, g, s, t):
    s["v"] = 0.99 * s.get("v", 0) + 0.01 * g * g
    return w - RATE * g / (np.sqrt(s["v"]) + 1e-8)


def adagrad(w, g, s, t):
    s["v"] = s.get("v", 0) + g * g
    return w - RATE * g / (np.sqrt(s["v"]) + 1e-10)


def lion(w, g, s, t):
    m = s.get("m", np.zeros_like(g))
    s["m"] = 0.99 * m + 0.01 * g
    return w - RATE * np.sign(0.9 * m + 0.1 * g)


EVERY = [sgd, momentum, nesterov, adam, adamw, rmsprop, adagrad, lion]
