"""How long people wait before anything happens."""

from harness import Table, contest, process

USE = "import tensorlogic as tl; b = tl.GraphBuilder(); g = b.build(y=b.input('x', (2,)) + 1); "


def tables() -> list[Table]:
    contenders = {
        "import numpy": process("import numpy"),
        "python -c pass": process("pass"),
        "import tensorlogic": process("import tensorlogic"),
        "import, build, plan and run a graph": process(USE + "tl.Executor().execute(g, {'x': [1.0, 2.0]})"),
        "tensorlogic --help": process("import sys; sys.argv = ['tensorlogic', '--help']; import tensorlogic.__main__"),
    }
    note = "Fresh processes, interpreter included. Importing stays under 2.5 times NumPy's import; a command starts within 300 ms."
    return [contest("Start-up", note, contenders, rounds=7, calls=1)]
