"""The prompt at a breakpoint: a few commands in the manner of pdb."""

from __future__ import annotations

import cmd
import sys
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from ..errors import ExecutionError, TensorLogicError
from ..plan.printing import describe
from .tensorstats import TensorStats

if TYPE_CHECKING:
    from .breakpoints import BreakpointHit, BreakpointManager

AROUND = 5  # steps that `list` shows before and after the current one
COMMANDS = ("continue", "next", "where", "print", "list", "break", "delete", "quit", "help")
SHORT = {name[0]: name for name in COMMANDS} | {"s": "next", "exit": "quit", "EOF": "quit"}


def ask(manager: BreakpointManager, hit: BreakpointHit, *streams: IO[str] | None) -> None:
    """Ask what to do at a breakpoint until the run goes on; ``quit`` raises an :class:`ExecutionError`."""
    prompt = _Prompt(manager, hit, *streams)
    prompt.cmdloop()
    if prompt.quits:
        message = f"the run was stopped at node %{hit.node_id} ({hit.operation}), by {hit.breakpoint}"
        hint = "go on with 'continue' instead, or take the breakpoint away"
        raise ExecutionError(message, hint, code="E714").at(None if hit.step is None else hit.step.location)


class _Prompt(cmd.Cmd):
    prompt = "(tl) "

    def __init__(self, manager: BreakpointManager, hit: BreakpointHit, *streams: IO[str] | None) -> None:
        super().__init__("tab", *streams)
        self.use_rawinput = self.stdin is sys.stdin and self.stdout is sys.stdout
        self.manager, self.hit, self.quits = manager, hit, False
        self.intro = self._printable(hit)

    def _printable(self, text: object) -> str:
        """Return text with a question mark for each character that the terminal cannot show, such as µ in the C locale."""
        encoding = getattr(self.stdout, "encoding", None) or "utf-8"
        return str(text).encode(encoding, "replace").decode(encoding)

    def _say(self, text: object) -> None:
        self.stdout.write(f"{self._printable(text)}\n")

    def precmd(self, line: str) -> str:
        """Spell short commands out."""
        word, _, rest = line.strip().partition(" ")
        return f"{SHORT.get(word, word)} {SHORT.get(rest, rest) if word in ('h', 'help') else rest}".rstrip()

    def emptyline(self) -> bool:
        """Do nothing; pdb's repeat of the last command surprises."""
        return False

    def default(self, line: str) -> None:
        """Say that a command is not known."""
        self._say(f"there is no command {line.split()[0]!r}; type help")

    def do_help(self, arg: str) -> None:
        """Say what the commands do: help, h."""
        for name in sorted(n for n in self.get_names() if n.startswith("do_")):
            if arg.strip() in ("", name.removeprefix("do_")):
                self._say(f"{name.removeprefix('do_'):10}{getattr(self, name).__doc__}")

    def do_continue(self, _: str) -> bool:
        """Run to the next breakpoint: continue, c."""
        self.manager.continue_execution()
        return True

    def do_next(self, _: str) -> bool:
        """Run one step and stop again: next, n, s."""
        self.manager.step()
        return True

    def do_quit(self, _: str) -> bool:
        """Give the run up with an error: quit, q."""
        self.quits = True
        return True

    def do_where(self, _: str) -> None:
        """Show the step, the line it came from, and what it read and made: where, w."""
        self._say(self.hit)
        step, plan = self.hit.step, self.hit.plan
        assert step is not None and plan is not None  # as in every hit of a run
        names = plan.slot_names()
        for slot, t in (*zip(step.reads, step.arg_types, strict=True), *zip(step.writes, step.types, strict=True)):
            self._say(f"  {'reads' if slot in step.reads else 'makes'} {names.get(slot, '?')}: {t}")

    def do_print(self, line: str) -> None:
        """Show the step's results or an operand, all or at an index: print, p, print 0,1:3, print x, print %2 0,1."""
        name, _, index = line.strip().partition(" ")
        step, plan = self.hit.step, self.hit.plan
        assert step is not None and plan is not None  # as in every hit of a run
        names = plan.slot_names()
        results = zip((names.get(slot, "?") for slot in step.writes), self.hit.values, strict=False)
        there = {**dict(results), **self.hit.operands}
        try:
            places = parse_index(index if name in there else line)
            for value in [there[name]] if name in there else self.hit.values:
                with np.printoptions(threshold=200, edgeitems=3, linewidth=100):
                    self._say(np.asarray(value)[places])
        except (ValueError, IndexError) as error:
            known = f"; operands: {', '.join(self.hit.operands)}" if self.hit.operands else ""
            why = str(error) if isinstance(error, IndexError) else f"{line.strip()!r} is no operand and no index"
            if name not in there and name in names.values():
                later = {names.get(slot) for s in plan.steps[self.hit.number :] for slot in s.writes}
                why = f"{name} is not made yet" if name in later else f"this step does not read {name}"
            self._say(f"cannot show that: {why}{known}")

    def do_stats(self, _: str) -> None:
        """Show range, mean, deviation and bad values of what the step read and made: stats."""
        for name, value in self.hit.operands.items():
            self._say(f"reads {TensorStats.of(name, value)}")
        for n, value in enumerate(self.hit.values):
            name = f"%{self.hit.node_id}" + (f".{n}" if len(self.hit.values) > 1 else "")
            self._say(f"makes {TensorStats.of(name, value)}")

    def do_list(self, _: str) -> None:
        """Show the steps of the plan around this one: list, l."""
        assert self.hit.plan is not None
        steps, at = self.hit.plan.steps, self.hit.number
        for n, step in [*enumerate(steps)][max(0, at - AROUND) : at + AROUND + 1]:
            types = ", ".join(map(str, step.types))
            self._say(f"{'->' if n == at else '  '} {n:3}  %{step.node} = {describe(step.op)}  {types}")

    def do_break(self, line: str) -> None:
        """Show the breakpoints, or add one: break, b, break 3, break relu, break nan, break time 5000 (µs)."""
        word = line.strip()
        if not word:
            self._say(self.manager)
            return
        number = word.removeprefix("%")
        try:
            if number.isdecimal():
                self._say(self.manager.add_node_breakpoint(int(number)))
            elif word == "nan":
                self._say(self.manager.add_numerical_issue_breakpoint())
            elif word.split()[0] == "time":
                self._say(self.manager.add_time_threshold_breakpoint(float(word.removeprefix("time"))))
            else:
                self._say(self.manager.add_operation_breakpoint(word))
        except (ValueError, TensorLogicError):
            self._say("a time is a number of microseconds: break time 5000")

    def do_delete(self, line: str) -> None:
        """Take a breakpoint away: delete 1, d 1."""
        if not line.strip().isdecimal():
            self._say("which one? delete NUMBER; 'break' shows them")
            return
        try:
            self.manager.remove(int(line))
        except TensorLogicError as error:
            self._say(error.diagnostic.message)


def parse_index(text: str) -> Any:
    """Read an index such as ``0,1:3`` or ``...,-1``; nothing is everything.

    >>> parse_index("[0, 1:3]"), parse_index("")
    ((0, slice(1, 3, None)), Ellipsis)
    """
    inner = text.strip().removeprefix("[").removesuffix("]").strip()
    if not inner:
        return ...
    parts: list[Any] = []
    for part in inner.split(","):
        bounds = part.strip().split(":")
        if part.strip() == "...":
            parts.append(...)
        elif len(bounds) == 1:
            parts.append(int(part))
        elif len(bounds) <= 3:
            parts.append(slice(*(int(b) if b.strip() else None for b in bounds)))
        else:
            raise ValueError(f"{part!r} is no index")
    return tuple(parts)
