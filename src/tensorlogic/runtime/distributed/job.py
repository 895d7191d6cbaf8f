"""A graph as the ranks of a mesh run it: what each of them holds, which part of it is whose stage, and how the outputs become whole."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple

from ...ir.graph import EinsumGraph, extract
from ...ir.types import TensorType, dims
from ...passes.specialize import specialize
from ...passes.split import Split, parts, split_inputs
from ...passes.stages import Unit, cut_units, reductions_last, unit_of_nodes
from .config import DistributedConfig
from .layout import (
    RankGraph,
    assembled,
    block_graphs,
    check_names,
    data_inputs,
    micro_batch_rows,
    own_ranges,
    owned_by,
    rank_graphs,
    rows_of,
)
from .rank import Task
from .schedule import FORWARD, LAST, Turn, turns_of
from .timing import cut_costs

if TYPE_CHECKING:
    from ..executor import Executor

LONGEST_SUMMARY = 400  # characters


class Part(NamedTuple):
    """One graph as the ranks of a mesh run it: what each place along data and model holds, and the units of that.

    A place has a unit for each stage, and, where the graph goes back, another for each stage but the last
    (:func:`~tensorlogic.passes.stages.stage_of_unit`).
    """

    graph: EinsumGraph
    ranks: Mapping[tuple[int, int], RankGraph]
    units: Mapping[tuple[int, int], list[Unit]]
    # by stage: what combines totals over ranks, after all micro-batches
    last: Mapping[tuple[int, int], list[EinsumGraph]]
    makers: Mapping[str, int]  # the stage that makes each output
    # by rank: the outputs that it hands in; of those who have the same part of one, the first does
    handed_in: tuple[tuple[str, ...], ...]

    @property
    def is_whole_everywhere(self) -> bool:
        """Whether every rank has all of every output anyway."""
        return len(self.units[0, 0]) == 1 and not self.ranks[0, 0].outputs

    def unit(self, place: Mapping[str, int], way: int, stages: int) -> EinsumGraph:
        """Return the graph that a rank runs, going forward, backward or last."""
        if way == LAST:
            return self.last[place["data"], place["model"]][place["stage"]]
        number = place["stage"] if way == FORWARD else 2 * (stages - 1) - place["stage"]
        return self.units[place["data"], place["model"]][number].graph


class Job:
    """A graph spread over a mesh, for inputs of certain types."""

    def __init__(
        self,
        graph: EinsumGraph,
        types: Mapping[str, TensorType],
        config: DistributedConfig,
        executor: Executor,
        rows: Mapping[str, int] | None = None,
        places: Sequence[tuple[int, int]] | None = None,
        carried: Sequence[str] = (),
        shares: Mapping[str, int] | None = None,
    ) -> None:
        """``rows`` are the inputs that ranks share, each with an axis, and ``shares`` more that lie along the data axis.

        ``carried`` are outputs that lie as inputs of the same names do, and ``places`` those along data and model that are wanted (None: all).
        """
        check_names(graph, config.strategy)
        self.config, self.mesh, self.carried = config, config.mesh, tuple(carried)
        self.places, self.executor = places, executor
        rows = rows_of(graph, config.strategy, self.mesh, config.deterministic) if rows is None else rows
        self.data = rows or data_inputs(graph, config.strategy)
        self.graph = specialize(graph, types)
        short = any(dims(types[name])[axis] < self.mesh.data for name, axis in rows.items())
        if carried and short and not config.deterministic:
            rows = {}  # a short batch at the end of an epoch: every rank takes the step with all of it
        self.rows = {**rows, **(shares or {})}
        self.cut: Split | None = split_inputs(self.graph, self.rows) if self.mesh.stage > 1 else None
        self._parts: dict[int, Part] = {}
        self.agreed = False  # whether all processes are known to have been given this job
        self._units: tuple[int, list[int]] = (-1, [])  # nodes, and the unit of each

    @cached_property
    def summary(self) -> str:
        """What the ranks must have been given alike, in words."""
        types = ", ".join(f"{name}: {self.graph.type_of(i)}" for name, i in self.graph.inputs.items())
        text = f"graph {self.graph.digest[:12]}, {self.config.strategy}, {types}"
        if len(text) <= LONGEST_SUMMARY:
            return text
        # ranks that differ in what is left out differ in this
        return f"{text[:LONGEST_SUMMARY]}... {blake2b(text.encode(), digest_size=6).hexdigest()}"

    def micro_batches(self) -> list[range]:
        """Return the rows of each micro-batch, as equal as they can be; a graph that is no pipeline has one of all."""
        if self.cut is None:
            return [range(0)]
        most = micro_batch_rows(self.config.strategy, self.mesh.stage, self.cut.size)
        return parts(self.cut.size, max(1, -(-self.cut.size // most)))

    def part(self, rows: int) -> Part:
        """Return what the ranks run for so many rows."""
        if rows not in self._parts:
            if self.cut is None:
                graph, axes = self.graph, self.rows
            else:
                graph = self.cut.part(rows)
                axes = {feed.label: feed.axis for feed in self.cut.feeds if feed.axis is not None}
            if self.config.deterministic:
                ranks = block_graphs(graph, self.mesh, axes)
            else:
                strategy = self.config.strategy
                ranks = rank_graphs(graph, self.mesh, axes, strategy, self.places, self.data, self.carried)
            self._parts[rows] = self._in_units(graph, ranks, axes)
        return self._parts[rows]

    def _in_units(
        self, graph: EinsumGraph, ranks: Mapping[tuple[int, int], RankGraph], rows: Mapping[str, int]
    ) -> Part:
        stages = self.mesh.stage
        if stages == 1:
            whole = {place: [Unit(own.graph, 0, tuple(own.graph.output_names))] for place, own in ranks.items()}
            makers = dict.fromkeys(graph.output_names, 0)
            return Part(graph, ranks, whole, {}, makers, self._handed_in(ranks, makers))
        both = {place: reductions_last(own.graph, self.totals) for place, own in ranks.items()}
        ranks = {place: own._replace(graph=both[place][0]) for place, own in ranks.items()}
        first = ranks[0, 0].graph
        if self._units[0] != len(first.nodes):  # a last, shorter micro-batch is cut where the others are
            measure = getattr(self.config.strategy, "measure", False)
            costs = cut_costs(self.executor, first, measure=measure)
            self._units = len(first.nodes), unit_of_nodes(first, costs, stages, rows)
        units = {place: cut_units(own.graph, self._units[1], stages, rows) for place, own in ranks.items()}
        makers = {name: unit.stage for unit in units[0, 0] for name in unit.outputs}
        last = {}
        for place, (_, late) in both.items():
            if late is not None:
                own = [[o for o in late.outputs if makers[o[0]] == stage] for stage in range(stages)]
                last[place] = [extract(late.nodes, outputs, {}) for outputs in own]
        return Part(graph, ranks, units, last, makers, self._handed_in(ranks, makers))

    def _handed_in(
        self, ranks: Mapping[tuple[int, int], RankGraph], makers: Mapping[str, int]
    ) -> tuple[tuple[str, ...], ...]:
        cuts = ranks[0, 0].outputs
        return tuple(
            tuple(n for n, stage in makers.items() if stage == place["stage"] and owned_by(cuts.get(n, ()), place))
            for place in map(self.mesh.coordinates, range(self.mesh.size))
        )

    def turns(self, part: Part, stage: int, batches: int) -> list[Turn]:
        """Return what a stage runs, in order: forward and backward units of micro-batches."""
        stages = self.mesh.stage
        units = part.units[0, 0]
        backward = stage < stages - 1 and len(units) > stages
        schedule = getattr(self.config.strategy, "schedule", "1f1b")
        turns = turns_of(schedule, stage, stages, batches, backward)
        return [*turns, (LAST, batches - 1)] if part.last and part.last[0, 0][stage].outputs else turns

    def tasks(
        self, rank: int, chosen: Sequence[Part], inputs: Sequence[Mapping[str, Any]], shares: Collection[str] = ()
    ) -> list[Task]:
        """Return what a rank runs, in order; the inputs that are ``shares`` are its own already."""
        place = self.mesh.coordinates(rank)
        found: list[Task] = []
        for way, n in self.turns(chosen[0], place["stage"], len(chosen)):
            graph = chosen[n].unit(place, way, self.mesh.stage)
            cuts = chosen[n].ranks[place["data"], place["model"]].inputs
            values = {}
            for name in graph.inputs:
                if name in inputs[n]:  # what is kept from another unit comes from the rank itself
                    value = inputs[n][name]
                    own = () if name in shares else cuts.get(name, ())
                    values[name] = value[own_ranges(value.shape, own, self.mesh, place)] if own else value
            totals = {name: how for name, how in self.totals.items() if way != LAST and name in graph.output_names}
            found.append(Task(graph, values, chosen[n].handed_in[rank], self.config.deterministic, totals))
        return found

    @property
    def totals(self) -> dict[str, str]:
        """The outputs that micro-batches combine, and how."""
        return {} if self.cut is None else {join.label: join.how for join in self.cut.joins if join.how != "concat"}

    def by_batch(self, chosen: Sequence[Part], rank: int, outputs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return what the tasks of a rank made, by micro-batch."""
        found: list[dict[str, Any]] = [{} for _ in chosen]
        turns = self.turns(chosen[0], self.mesh.coordinates(rank)["stage"], len(chosen))
        for (_, n), own in zip(turns, outputs, strict=True):
            found[n] |= own
        return found

    def everywhere(self, part: Part, name: str) -> bool:
        """Tell whether every rank has all of an output anyway."""
        return self.mesh.stage == 1 and not part.ranks[0, 0].outputs.get(name)

    def whole(self, part: Part, results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the outputs of a micro-batch, put together from what the ranks have of them."""
        outputs = {}
        for name, i in part.graph.outputs:
            if not any(name in own for own in results):
                continue  # a total, which comes with the last micro-batch
            own = {rank: results[rank][name] for rank, names in enumerate(part.handed_in) if name in names}
            cuts = part.ranks[0, 0].outputs.get(name, ())
            outputs[name] = assembled(part.graph.type_of(i), cuts, self.mesh, own)
        return outputs
