"""The package as a whole: import direction, lazy imports, public names and their examples."""

import ast
import doctest
import importlib
import inspect
import os
import pkgutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import tensorlogic as tl

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "tensorlogic"
# each layer may import what stands to its left, and itself
LAYERS = [
    {"errors", "diagnostics", "events", "store", "tables", "faults"}, {"ir"}, {"lang", "passes"}, {"plan"}, {"backends"},
    {"runtime"}, {"observe", "debug"}, {"train"}, {"programs"}, {"serve"}, {"api"}, {"cli", "testing"},
]  # fmt: skip
RANK = {name: n for n, layer in enumerate(LAYERS) for name in layer}
MODULES = sorted(
    m.name for m in pkgutil.walk_packages([str(PACKAGE)], "tensorlogic.") if not m.name.endswith("__main__")
)


def imported(path: Path) -> set[str]:
    """Return the parts of the package that a module imports, in or out of functions."""
    package = ["tensorlogic", *path.relative_to(PACKAGE).parent.parts]
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - node.level + 1] + (node.module.split(".") if node.module else [])
            names = [base] if len(base) > 1 else [[*base, alias.name] for alias in node.names]
            found |= {parts[1] for parts in names if len(parts) > 1}
        elif isinstance(node, ast.ImportFrom | ast.Import):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
            found |= {n.split(".")[1] for n in names if n.startswith("tensorlogic.")}
    return found & RANK.keys()


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_left(path):
    part = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    if part in ("__init__", "__main__"):
        return
    wrong = {name for name in imported(path) if RANK[name] > RANK[part]}
    assert not wrong, f"{path.name} ({part}) imports {wrong}, which stand to its right"


def test_every_part_has_a_layer():
    parts = {p.name.removesuffix(".py") for p in PACKAGE.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()}
    assert parts - {"__init__", "__main__"} <= RANK.keys()


def test_the_public_names_are_those_of_the_stub():
    import lazy_loader

    _, _, names = lazy_loader.attach_stub("tensorlogic", tl.__file__)
    assert sorted(tl.__all__) == sorted([*names, "__version__"])
    assert (
        "ast"
        not in subprocess.run(
            [sys.executable, "-c", "import sys, tensorlogic; print(*sys.modules)"],
            check=True,
            capture_output=True,
            text=True,
        ).stdout.split()
    )


def test_importing_and_running_load_no_heavy_engine():
    code = (
        "import sys, tensorlogic as tl\n"
        "light = {m.split('.')[0] for m in sys.modules}\n"
        "assert 'numpy' not in light, 'import tensorlogic loads numpy'\n"
        "b = tl.GraphBuilder(); g = b.build(y=b.relu(b.input('x', (2, 2)) @ b.input('w', (2, 2))))\n"
        "tl.Executor().execute(g, {'x': [[1., 2.], [3., 4.]], 'w': [[1., 0.], [0., 1.]]})\n"
        "heavy = {m.split('.')[0] for m in sys.modules} & {'numba', 'scipy', 'jax', 'torch', 'onnxruntime', 'opt_einsum'}\n"
        "assert not heavy, heavy\n"
        "unasked = {'plan.candidates', 'plan.groups', 'backends.control'} & {m.removeprefix('tensorlogic.') for m in sys.modules}\n"
        "assert not unasked, unasked"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


@pytest.mark.parametrize("name", MODULES)
def test_docstrings_run(name, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    # a fresh finder per module; NumPy's printing is the default one
    failed, _ = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert failed == 0


@pytest.mark.parametrize("name", sorted(n for n in tl.__all__ if not n.startswith("_")))
def test_public_names_have_an_example(name):
    item = getattr(tl, name)
    if isinstance(item, dict):
        return  # a table; its rows' class has the example
    doc = inspect.getdoc(item) or ""
    assert doc.split("\n")[0].rstrip().endswith("."), f"{name} has no opening sentence"
    assert ">>>" in doc, f"{name} has no example"


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.name)
def test_examples_run(path, golden):
    env = {**os.environ, "PYTHONWARNINGS": "error", "PYTHONUTF8": "1"}  # they print more than ASCII
    done = subprocess.run([sys.executable, str(path)], capture_output=True, encoding="utf-8", check=False, env=env)
    assert done.returncode == 0, done.stderr
    golden(f"example_{path.stem}.txt", done.stdout)


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match=r"^tensorlogic has no 'NoSuchName'$"):
        tl.NoSuchName
    with pytest.raises(AttributeError, match="did you mean 'Executor'"):
        tl.Exectuor


def test_torch_tensors_go_in():
    torch = pytest.importorskip("torch", reason="make test TORCH=1 installs PyTorch")
    b = tl.GraphBuilder()
    graph = b.build(y=b.input("x", ("n",)) * 2)
    assert tl.Executor().execute(graph, {"x": torch.arange(3.0)})["y"].tolist() == [0.0, 2.0, 4.0]


def test_what_is_equal_is_not_unequal():
    """Records of msgspec have a != that does not ask the == of a class: equal expressions were unequal too."""
    for module in MODULES:
        if module.split(".")[1] in ("cli", "serve", "testing"):  # some of them need what is not installed
            continue
        for name, kind in vars(importlib.import_module(module)).items():
            if inspect.isclass(kind) and "__eq__" in vars(kind):
                owner = next(k for k in kind.__mro__ if "__ne__" in vars(k))
                assert owner is object or "__eq__" in vars(owner), f"{name} has the != of {owner}"
    one, two, other = (tl.parse_expr(text) for text in ("p(x) -> q(x)", "p(x) -> q(x)", "p(x) -> q(y)"))
    assert one == two
    assert (one != two) is False
    assert one != other
