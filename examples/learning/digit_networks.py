"""Networks that tell digits apart, and MNIST to try them on: what several examples of this folder share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import tensorlogic as tl

Array = np.ndarray[Any, Any]
WANTED = "there is no {}: make data fetches it"


def mnist(folder: Path) -> dict[str, Array]:
    """Return train_images, train_labels, test_images and test_labels: images (n, 28, 28) of bytes, labels as whole numbers."""
    return arrays_of(folder / "mnist.npz")


def arrays_of(path: Path) -> dict[str, Array]:
    """Return the arrays that make data keeps in a file, the labels among them as whole numbers."""
    if not path.exists():
        raise SystemExit(WANTED.format(path))
    with np.load(path) as found:
        arrays = {name: found[name] for name in found.files}
    return {name: a.astype("int64") if name.endswith("labels") else a for name, a in arrays.items()}


def _layer(b: tl.GraphBuilder, x: tl.Tensor, name: str, size: int, width: int) -> tl.Tensor:
    return b.linear(x, b.input(f"{name}_w", (size, width), "float32"), b.input(f"{name}_c", (width,), "float32"))


def perceptron(b: tl.GraphBuilder, images: tl.Tensor, dropout: float, width: int = 256) -> tl.Tensor:
    """Return the logits of ten digits for images (n, size, size): two hidden layers."""
    size = int(b.shape_of(images)[1])
    x = b.dropout(b.relu(_layer(b, images.reshape(-1, size * size), "first", size * size, width)), dropout)
    x = b.dropout(b.relu(_layer(b, x, "second", width, width // 2)), dropout)
    return _layer(b, x, "digit", width // 2, 10)


def _convolution(b: tl.GraphBuilder, x: tl.Tensor, name: str, window: int, step: int, filters: int) -> tl.Tensor:
    """Slide a window over images (n, height, width, channels), height and width alike.

    Feature(n, a, b, f) sums Image(n, h, w, c) Filter(i, j, c, f) where h = step a + i and w = step b + j: one einsum with that relation.
    """
    _, before, _, channels = (b.shape_of(x)[axis] for axis in range(4))
    after = (int(before) - window) // step + 1
    h, a, i = np.ogrid[: int(before), :after, :window]
    at = (h == step * a + i).astype("float32")
    weight = b.input(f"{name}_w", (window, window, int(channels), filters), "float32")
    y = b.einsum("nhwc,hai,wbj,ijcf->nabf", x, at, at, weight)
    return b.relu(y + b.input(f"{name}_c", (filters,), "float32"))


def convolutions(b: tl.GraphBuilder, images: tl.Tensor, dropout: float, filters: int = 16) -> tl.Tensor:
    """Return the logits of ten digits for images (n, size, size): two convolutions, as in Simard, Steinkraus and Platt (2003).

    Small images have windows of 3 by 3 at every place, larger ones windows of 5 by 5 at every second.
    """
    size = int(b.shape_of(images)[1])
    window, step = (3, 1) if size < 16 else (5, 2)
    x = _convolution(b, images.reshape(-1, size, size, 1), "first", window, step, filters)
    x = _convolution(b, x, "second", window, step, 3 * filters)  # 4 by 4 places are left
    x = b.dropout(x.reshape(-1, 48 * filters), dropout)
    x = b.dropout(b.relu(_layer(b, x, "third", 48 * filters, 128)), dropout)
    return _layer(b, x, "digit", 128, 10)


NETWORKS = {"perceptron": perceptron, "convolutions": convolutions}
