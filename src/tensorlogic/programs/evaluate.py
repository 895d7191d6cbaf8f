"""Evaluating a model: what is asked for is computed by one graph, and kept until something it depends on changes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ..backends.relations.resume import Before, Earlier, resumed
from ..backends.sparse import SparseTensor
from ..errors import InputError, nearest
from ..runtime.executor import Executor
from .model import Model, resized

Stamp = Mapping[str, int]
SIZES = "@sizes"  # changes where domains grow


class Kept(NamedTuple):
    """A value that was computed, the versions of all it depends on at that time, and for a recursion what its rules read."""

    value: Any
    stamp: Stamp
    reads: Mapping[str, Any] = {}


class Versions:
    """How often each tensor has changed, and when it last lost something."""

    def __init__(self) -> None:
        self.now: dict[str, int] = {}
        self.lost: dict[str, int] = {}
        self.count = 0

    def change(self, name: str, *, grown: bool = False) -> None:
        """Note a change; ``grown`` where facts were only added."""
        self.count += 1
        self.now[name] = self.count
        if not grown:
            self.lost[name] = self.count

    def view(self, inputs: Iterable[str]) -> View:
        """Return the versions as a run sees them that is given some tensors of its own."""
        own = {}
        for name in inputs:
            self.count += 1
            own[name] = self.count
        return View(self, own)


class View(NamedTuple):
    """The versions of tensors for one run: those that the run is given itself have versions of their own."""

    versions: Versions
    own: Mapping[str, int]

    def version(self, name: str) -> int:
        """Return how a tensor stands now."""
        return self.own[name] if name in self.own else self.versions.now.get(name, 0)

    def stamp(self, names: Iterable[str]) -> dict[str, int]:
        """Return the versions of some tensors."""
        return {name: self.version(name) for name in names}

    def fresh(self, stamp: Stamp) -> bool:
        """Tell whether nothing has changed since."""
        return all(self.version(name) == version for name, version in stamp.items())

    def only_grown(self, stamp: Stamp, careful: Iterable[str]) -> bool:
        """Tell whether all that was derived then can be derived now: facts were only added, and to nothing that is negated."""
        lost = {**self.versions.lost, **self.own}
        if any(
            lost.get(name, 0) > version or (name in self.own) != (version == self.own.get(name))
            for name, version in stamp.items()
        ):
            return False
        return all(self.version(name) == stamp.get(name, 0) for name in careful)


class Evaluation:
    """The values of a model's tensors for some inputs, each computed when it is first asked for."""

    def __init__(
        self, model: Model, executor: Executor, bound: Mapping[str, Any], versions: View, kept: dict[str, Kept]
    ) -> None:
        self.model, self.executor, self.bound = model, executor, bound
        self.versions, self.kept = versions, kept

    def value(self, name: str) -> Any:
        """Return a tensor: an array of numbers, or a relation in the layout that it was computed in."""
        return self.values([name])[name]

    def values(self, names: Iterable[str]) -> dict[str, Any]:
        """Return several tensors; those that have to be computed are computed together."""
        names = list(names)
        missing = [n for n in names if self.model.component(n) is not None and not self.has(n)]
        found = self._compute(missing) if missing else {}
        return {n: found[n] if n in found else self._known(n) for n in names}

    def relation(self, name: str) -> SparseTensor:
        """Return a relation as a sparse tensor."""
        found = SparseTensor(self.value(name))
        kept = self.kept.get(name)
        if kept is not None and self.has(name):
            self.kept[name] = kept._replace(value=found)
        return found

    def has(self, name: str) -> bool:
        """Tell whether a tensor is given, or was computed and still holds."""
        if self.model.component(name) is None:
            return True
        kept = self.kept.get(name)
        return kept is not None and self.versions.fresh(kept.stamp)

    def plan(self, names: Iterable[str]) -> Any:
        """Return the plan that computes some tensors from what is given."""
        graph, inputs = self.prepared(list(names), whole=True)
        return self.executor.plan(graph, inputs)

    def prepared(self, names: list[str], *, whole: bool = False, start: bool = True) -> tuple[Any, dict[str, Any]]:
        """Return the graph that computes tensors, and its inputs.

        ``whole`` computes again what is kept; with ``start`` recursive relations begin with what is given for them.
        """
        parts = self._parts(names, whole)
        model = self.model
        loops = [n for part in parts for n in model.analysis.components[part].names if self._is_loop(part)]
        graph = model.graph(parts, list(dict.fromkeys([*names, *([] if whole else loops)])), start=start)
        computed = {n for part in parts for n in model.analysis.components[part].names}
        return graph, {name: self._facts(name) if name in computed else self._known(name) for name in graph.inputs}

    def _is_loop(self, part: int) -> bool:
        component = self.model.analysis.components[part]
        return component.recursive and component.boolean

    def _parts(self, names: list[str], whole: bool) -> list[int]:
        """Return the components that have to run, in order."""
        model = self.model
        pending = [n for n in names if model.component(n) is not None]
        found: set[int] = set()
        while pending:
            part = model.readers.component[pending.pop()]
            if part not in found:
                found.add(part)
                pending += [
                    n
                    for n in model.readers.direct[part]
                    if model.component(n) is not None and (whole or not self.has(n))
                ]
        return sorted(found)

    def _compute(self, names: list[str]) -> dict[str, Any]:
        graph, inputs = self.prepared(names)
        with resumed(self._before(graph.output_names, inputs)):
            found = dict(self.executor.execute(graph, inputs).items())
        readers = self.model.readers
        reads = {
            part: {n: inputs[n] for n in readers.direct[part] if n in inputs} if self._is_loop(part) else {}
            for part in {readers.component[name] for name in found}
        }
        for name, value in found.items():
            stamp = self.versions.stamp(self._depends(name))
            self.kept[name] = Kept(value, stamp, reads[readers.component[name]])
        return found

    def _before(self, names: Iterable[str], inputs: Mapping[str, Any]) -> Before:
        """Return what recursive relations were, and what their rules read, where facts were only added since."""
        model = self.model
        before: Before = {}
        known: dict[int, dict[int, SparseTensor]] = {}
        for name in names:
            kept = self.kept.get(name)
            if kept is None or not kept.reads or not isinstance(kept.value, SparseTensor) or name not in inputs:
                continue
            if not self.versions.only_grown(kept.stamp, model.readers.careful[name]):
                continue
            if id(kept.reads) not in known:
                known[id(kept.reads)] = {
                    id(now): resized(was, now.shape)
                    for read, was in kept.reads.items()
                    if isinstance(now := inputs.get(read), SparseTensor) and isinstance(was, SparseTensor)
                }
            before[id(inputs[name])] = Earlier(resized(kept.value, model.shape(name)), known[id(kept.reads)])
        return before

    def _depends(self, name: str) -> frozenset[str]:
        """Return what a tensor depends on; one of numbers depends on the sizes of the domains too."""
        found = self.model.readers.closure[name]
        part = self.model.readers.component[name]
        return found if self.model.analysis.components[part].boolean else found | {SIZES}

    def _facts(self, name: str) -> SparseTensor:
        facts = self.model.facts(name)
        return facts | resized(SparseTensor(self.bound[name]), facts.shape) if name in self.bound else facts

    def check_defined(self, names: Iterable[str]) -> None:
        """Refuse relations that have neither facts nor rules: a name that is misspelt would have no answers, without a word."""
        tensors = self.model.analysis.tensors
        for name in names:
            given = name in self.bound or self.model.has_facts(name) or self.model.component(name) is not None
            if tensors[name].boolean and not given:
                known = [n for n, t in tensors.items() if t.boolean and n != name]
                near = [h for h in nearest(name, known) if h.startswith("did you")]
                hint = f"where it is meant to be empty, say so: program.add({name!r}, [])"
                message = f"the relation {name!r} has no facts and no rules"
                raise InputError(message, *near, hint, code="E786", location=tensors[name].at)

    def _known(self, name: str) -> Any:
        """Return a tensor that need not be computed."""
        if self.model.component(name) is not None and name in self.kept:
            value, shape = self.kept[name].value, self.model.shape(name)
            tensor = self.model.analysis.tensors[name]
            return resized(SparseTensor(value), shape) if tensor.boolean and tuple(value.shape) != shape else value
        tensor = self.model.analysis.tensors[name]
        self.check_defined([name])
        if tensor.boolean:
            return self._facts(name) if name not in self.bound or self.model.has_facts(name) else self.bound[name]
        if name in self.bound:
            return self.bound[name]
        hint = f"give it: program.run({name}=array), or program.bind({name}=array)"
        if not name.isidentifier():
            hint = f"give it: program.run({{{name!r}: array}})"
        raise InputError(f"the tensor {name!r} is not given", hint, code="E786", location=tensor.at)
