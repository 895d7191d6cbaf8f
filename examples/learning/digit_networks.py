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
    path = folder / "mnist.npz"
    if not path.exists():
        raise SystemExit(WANTED.format(path))
    with np.load(path) as found:
        arrays = {name: found[name] for name in found.files}
    return {name: a.astype("int64") if name.endswith("labels") else a for name, a in arrays.items()}


def _layer(b: tl.GraphBuilder, x: tl.Tensor, name: str, size: int, width: int) -> tl.Tensor:
    return b.linear(x, b.input(f"{name}_w", (size, width), "float32"), b.input(f"{name}_c", (width,), "float32"))


def perceptron(b: tl.GraphBuilder, images: tl.Tensor, dropout: float, width: int = 256) -> tl.Tensor:
    """Return the logits of ten digits for images (n, 28, 28): two hidden layers."""
    x = b.dropout(b.relu(_layer(b, images.reshape(-1, 784), "first", 784, width)), dropout)
    x = b.dropout(b.relu(_layer(b, x, "second", width, width // 2)), dropout)
    return _layer(b, x, "digit", width // 2, 10)


def _convolution(b: tl.GraphBuilder, x: tl.Tensor, name: str, size: int, channels: int, filters: int) -> tl.Tensor:
    """Slide a window over images (n, height, width, channels) by steps of 2.

    Feature(n, a, b, f) sums Image(n, h, w, c) Filter(i, j, c, f) where h = 2 a + i and w = 2 b + j: one einsum with that relation.
    """
    before = int(b.shape_of(x)[1])
    after = (before - size) // 2 + 1
    h, a, i = np.ogrid[:before, :after, :size]
    at = (h == 2 * a + i).astype("float32")
    weight = b.input(f"{name}_w", (size, size, channels, filters), "float32")
    y = b.einsum("nhwc,hai,wbj,ijcf->nabf", x, at, at, weight)
    return b.relu(y + b.input(f"{name}_c", (filters,), "float32"))


def convolutions(b: tl.GraphBuilder, images: tl.Tensor, dropout: float, filters: int = 16) -> tl.Tensor:
    """Return the logits of ten digits for images (n, 28, 28): two convolutions, as in Simard, Steinkraus and Platt (2003)."""
    x = _convolution(b, images.reshape(-1, 28, 28, 1), "first", 5, 1, filters)  # 12 by 12
    x = _convolution(b, x, "second", 5, filters, 3 * filters)  # 4 by 4
    x = b.dropout(x.reshape(-1, 48 * filters), dropout)
    x = b.dropout(b.relu(_layer(b, x, "third", 48 * filters, 128)), dropout)
    return _layer(b, x, "digit", 128, 10)


NETWORKS = {"perceptron": perceptron, "convolutions": convolutions}
