"""The labels under which ranks meet, and the error of ranks that meet under different ones."""

from __future__ import annotations

from itertools import zip_longest

from ...errors import ExecutionError

# these open the labels of exchanges whose name is all that they give: what this rank was given to run, that it has run it, and why it runs nothing
RUN_LABEL, END_LABEL, ERROR_LABEL = "a run of ", "the end of ", "an error: "
AND, END_OF_VALUES = ", ", "; "  # in the label of a run: between the checksums of its inputs, and after them
CATCH = "let every rank of a group catch an error, or none"


def ranks_differ(own: int, did: bytes, rank: int, came: bytes, hint: str) -> ExecutionError:
    """Return the error of a rank that does one thing where another does something else, by the names of both."""
    here, there = did.decode(errors="replace"), came.decode(errors="replace")
    if there.startswith(ERROR_LABEL):
        message = f"rank {rank} failed: {there.removeprefix(ERROR_LABEL)}"
        return ExecutionError(message, "look at the error of that rank", code="E373")
    if here.startswith(RUN_LABEL) and there.startswith(RUN_LABEL):
        (call, _, mine), (other, _, theirs) = (each.removeprefix(RUN_LABEL).partition(": ") for each in (here, there))
        if call == other:
            return _given_differently(own, mine, rank, theirs)
        here, there = (
            f"{RUN_LABEL}{n}: {what.rpartition(END_OF_VALUES)[2]}" for n, what in ((call, mine), (other, theirs))
        )
        hint = CATCH
    message = f"the ranks do not do the same: rank {own}: {here}, rank {rank}: {there}"
    return ExecutionError(message, hint, code="E375")


def _given_differently(own: int, mine: str, rank: int, theirs: str) -> ExecutionError:
    """Return the error of ranks that were given different things: the inputs whose values differ, where nothing else does."""
    (values, _, here), (others, _, there) = (each.rpartition(END_OF_VALUES) for each in (mine, theirs))
    if here != there:
        message = f"rank {rank} was given something else than rank {own}"
        return ExecutionError(message, f"here: {here}", f"there: {there}", code="E383")
    pairs = zip_longest(values.split(AND), others.split(AND), fillvalue="")
    names = ", ".join([(a or b).rpartition(" ")[0] for a, b in pairs if a != b])
    message = f"rank {rank} was given other values of {names} than rank {own}"
    hint = "give every rank the same inputs, whole; where each gives its own share: DistributedConfig(..., own_shares=True)"
    return ExecutionError(message, hint, code="E383")
