"""Evaluating a model: what is asked for is computed by one graph, and kept until something it depends on changes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ..backends.relations.update import Earlier, resumed
from ..backends.sparse import SparseTensor
from ..errors import InputError, nearest
from ..ir.graph import EinsumGraph
from ..lang.analysis import how_to_give
from ..runtime.executor import Executor
from .model import Model, empty, resized

Stamp = Mapping[str, int]
SIZES = "@sizes"  # changes where domains grow
LARGE = 4096  # tuples from which a relation without recursion is brought up to date, and not computed again


class Kept(NamedTuple):
    """A value that was computed, the versions of all it depends on at that time, and what its rules read, where that is known."""

    value: Any
    stamp: Stamp
    reads: Mapping[str, Any] | None = None


class Versions:
    """When each tensor last changed."""

    def __init__(self) -> None:
        self.now: dict[str, int] = {}
        self.count = 0

    def change(self, name: str) -> None:
        """Note a change."""
        self.count += 1
        self.now[name] = self.count

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
        if missing:
            self._compute(missing)
        return {n: self._known(n) for n in names}

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
        graph = self.model.graph(parts, names, start=start)
        return graph, self._inputs(graph, parts)

    def _inputs(self, graph: EinsumGraph, parts: Iterable[int]) -> dict[str, Any]:
        """Return what the graph of some components is given: the facts of what it computes, and the values of all else."""
        computed = {n for part in parts for n in self.model.analysis.components[part].names}
        return {name: self.facts(name) if name in computed else self._known(name) for name in graph.inputs}

    def _parts(self, names: list[str], whole: bool) -> list[int]:
        """Return the components that have to run, in order."""
        model = self.model
        pending = [n for n in names if model.component(n) is not None]
        found: set[int] = set()
        while pending:
            part = model.readers.component[pending.pop()]
            if part not in found:
                found.add(part)
                computed = [n for n in model.readers.direct[part] if model.component(n) is not None]
                pending += [n for n in computed if whole or not self.has(n)]
        return sorted(found)

    def _compute(self, names: list[str]) -> None:
        """Compute tensors and what they need: brought up to date where it is known what they were before, else anew."""
        anew: list[int] = []
        for part in self._parts(names, whole=False):
            component, read = self.model.analysis.components[part], self.model.readers.direct[part]
            before = self._reads_before(part)
            if before is None:
                anew.append(part)
                continue
            if any(self.model.component(n) in anew for n in read):
                self._run(anew, names)
                anew = []
            now = {n: self._known(n) for n in read} | {n: self.facts(n) for n in component.names if self._has_facts(n)}
            if now.keys() == before.keys() and all(before[n] is value for n, value in now.items()):
                for name in component.names:  # what has changed changes nothing here
                    self._keep(name, self.kept[name].value, before)
            else:
                self._run([part], names, before)
        if anew:
            self._run(anew, names)

    def _run(self, parts: list[int], names: Iterable[str], before: Mapping[str, Any] | None = None) -> None:
        """Run the graph of some components; keep what is asked for of them, and what can be brought up to date later.

        ``before`` has what the rules of one component read when it last ran, where it is to be brought up to date.
        """
        model = self.model
        components = [(part, model.analysis.components[part]) for part in parts]
        own = [n for _, c in components for n in c.names]
        again = any(n in self.kept for n in own)  # what has changed once may change again
        kept = {n for _, c in components if c.boolean and (c.recursive or again) for n in c.names}
        outputs = [n for n in own if n in kept or n in names]
        graph = model.graph(parts, outputs, given=() if before is None else own)
        inputs = self._inputs(graph, parts)
        with resumed(None if before is None else self._earlier(own, inputs, before)):
            found = dict(self.executor.execute(graph, inputs).items())
        values = {**inputs, **found}
        for part, component in components:
            read = model.readers.direct[part]
            facts = {n: inputs[n] for n in component.names if n in inputs and self._has_facts(n)}
            known = component.boolean and read <= values.keys()
            reads = {n: values[n] for n in read} | facts if known else None
            for name in component.names:
                if name in found:
                    self._keep(name, found[name], reads)

    def _keep(self, name: str, value: Any, reads: Mapping[str, Any] | None) -> None:
        self.kept[name] = Kept(value, self.versions.stamp(self._depends(name)), reads)

    def _reads_before(self, part: int) -> Mapping[str, Any] | None:
        """Return what the rules of a component read when all its relations were computed; None where it has to be computed anew."""
        component = self.model.analysis.components[part]
        first = self.kept.get(component.names[0])
        if not component.boolean or first is None or first.reads is None:
            return None
        tuples = 0
        for name in component.names:
            kept = self.kept.get(name)
            if kept is None or kept.reads is not first.reads or not isinstance(kept.value, SparseTensor):
                return None
            tuples += kept.value.count
        return first.reads if component.recursive or tuples >= LARGE else None

    def _earlier(self, own: Iterable[str], inputs: Mapping[str, Any], before: Mapping[str, Any]) -> Earlier:
        """Return what the relations of a component were, and what their rules read then."""
        results = {id(inputs[n]): resized(self.kept[n].value, inputs[n].shape) for n in own}
        reads: dict[int, Any] = {}
        for name, now in inputs.items():
            was = before.get(name, empty(now.shape) if name in own else None)
            if was is now:
                reads[id(now)] = now
            elif isinstance(was, SparseTensor) and isinstance(now, SparseTensor):
                reads[id(now)] = resized(was, now.shape)
        return Earlier(results, reads)

    def _has_facts(self, name: str) -> bool:
        return name in self.bound or self.model.has_facts(name)

    def _depends(self, name: str) -> frozenset[str]:
        """Return what a tensor depends on; one of numbers depends on the sizes of the domains too."""
        found = self.model.readers.closure[name]
        part = self.model.readers.component[name]
        return found if self.model.analysis.components[part].boolean else found | {SIZES}

    def facts(self, name: str) -> SparseTensor:
        """Return the facts of a relation, and the tuples that are bound to it."""
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
                hint = f"where it is meant to be empty, say so: program.add({name!r}, []), or let the program read an empty file"
                message = f"the relation {name!r} has no facts and no rules"
                raise InputError(message, *near, hint, code="E786", location=tensors[name].at)

    def _known(self, name: str) -> Any:
        """Return a tensor that need not be computed."""
        tensor = self.model.analysis.tensors[name]
        if self.model.component(name) is not None and name in self.kept:
            value, shape = self.kept[name].value, self.model.shape(name)
            return resized(SparseTensor(value), shape) if tensor.boolean and tuple(value.shape) != shape else value
        self.check_defined([name])
        if tensor.boolean:
            return self.facts(name) if name not in self.bound or self.model.has_facts(name) else self.bound[name]
        if name in self.bound:
            return self.bound[name]
        raise InputError(f"the tensor {name!r} is not given", how_to_give(name), code="E786", location=tensor.at)
