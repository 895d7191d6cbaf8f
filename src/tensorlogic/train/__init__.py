"""Learning: a training step is one more graph, and a trainer calls it."""

from . import optim as optim
