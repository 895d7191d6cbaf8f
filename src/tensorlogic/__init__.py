"""tensorlogic: logic and neural networks as one einsum graph, planned once and run fast.

The public names are listed in ``__init__.pyi``; each is imported when it is first used.
"""

import lazy_loader

__version__ = "0.1.0"


def _read_names() -> tuple[set[str], dict[str, list[str]]]:
    """Return the modules that are public, and the public names of others: a line of the stub each.

    ``lazy_loader.attach_stub`` does the same for any stub, and takes ten times as long: it loads a parser.
    """
    modules, names = set[str](), dict[str, list[str]]()
    with open(__file__.rpartition(".")[0] + ".pyi", encoding="utf-8") as stub:  # noqa: PTH123 - pathlib takes long to load
        for words in map(str.split, stub):
            if words[:1] == ["from"]:  # from .module import name as name
                _, module, _, name, *_ = words
                if module == ".":
                    modules.add(name)
                else:
                    names.setdefault(module[1:], []).append(name)
    return modules, names


_attribute, __dir__, __all__ = lazy_loader.attach(__name__, *_read_names())


def __getattr__(name: str) -> object:
    """Load a public name when it is first used; of one that there is not, name the nearest."""
    if name in __all__ or name.startswith("_"):
        return _attribute(name)
    from .errors import closest
    from .ir.tensor import ELSEWHERE

    if hasattr(_attribute("GraphBuilder"), name):
        at_once = f", or tl.eager.{name}(...) on values" if hasattr(_attribute("eager"), name) else ""
        near = f"; write b.{name}(...), where b = tl.GraphBuilder(){at_once}"
    elif hasattr(_attribute("Executor"), name):
        near = f"; write tl.Executor().{name}(...)"
    elif name in ELSEWHERE:
        near = f"; write {ELSEWHERE[name]}"
    else:
        word = closest(name, __all__)
        near = f"; did you mean {word!r}?" if word else ""
    raise AttributeError(f"tensorlogic has no {name!r}{near}")


__all__ += ["__version__"]
