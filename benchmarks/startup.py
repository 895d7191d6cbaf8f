"""How long people wait before anything happens."""

import tempfile
from pathlib import Path

import numpy as np
from harness import Table, contest, process

import tensorlogic as tl

USE = "import tensorlogic as tl; b = tl.GraphBuilder(); g = b.build(y=b.input('x', (2,)) + 1); "


def saved(folder: Path) -> None:
    """Save the plan of a small perceptron."""
    b = tl.GraphBuilder()
    h = b.input("x", ("n", 784), "float32")
    for m, n in ((784, 512), (512, 256), (256, 10)):
        h = b.relu(b.linear(h, b.constant(np.full((m, n), 0.01, "float32")), b.constant(np.zeros(n, "float32"))))
    tl.GraphCompiler().compile(b.build(y=h), sizes={"n": 64}).save(folder)


def tables() -> list[Table]:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "mlp.tlc"
        saved(folder)
        code = f"import numpy as np, tensorlogic as tl; tl.CompiledGraph.load({str(folder)!r})"
        run = "({'x': np.ones((64, 784), 'float32')})"
        plan = contest(
            "First answer from a saved plan",
            "Fresh processes, interpreter included: an MLP 784-512-256-10 of batch 64 (2.1 MB of weights) loaded with its plan and run.",
            {
                "import numpy": process("import numpy"),
                "import numpy and what runs a graph": process(
                    "import numpy, tensorlogic.runtime.compile, tensorlogic.backends.numpy"
                ),
                "the same, load a saved plan and run it": process(code + run),
            },
            rounds=9,
            calls=1,
        )
    return [start_up(), plan]


def start_up() -> Table:
    contenders = {
        "import numpy": process("import numpy"),
        "python -c pass": process("pass"),
        "import tensorlogic": process("import tensorlogic"),
        "import, build, plan and run a graph": process(USE + "tl.Executor().execute(g, {'x': [1.0, 2.0]})"),
        "tensorlogic --help": process("import sys; sys.argv = ['tensorlogic', '--help']; import tensorlogic.__main__"),
    }
    note = "Fresh processes, interpreter included. Importing stays under 2.5 times NumPy's import; a command starts within 300 ms."
    return contest("Start-up", note, contenders, rounds=7, calls=1)
