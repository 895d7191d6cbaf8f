"""The catalogue of faults: what each error code means, why it comes about, and what to do. One code, one fault."""

from __future__ import annotations

from typing import NamedTuple


class Fault(NamedTuple):
    """One kind of mistake.

    >>> FAULTS["E301"].title
    'an argument of the wrong kind'
    """

    title: str
    cause: str
    fix: str


FAULTS: dict[str, Fault] = {
    # E0xx and E1xx: graphs and types
    # E2xx: files
    "E240": Fault("no such trace file", "The file that was asked for is not there.", "Check the name; the hint shows the nearest one in the folder."),
    "E241": Fault("a file that cannot be read", "The system refuses to open or read the file.", "Check that it is a file and that you may read it."),
    "E242": Fault("a file that cannot be written", "The system refuses to write the file.", "Give a name in a folder that exists and that you may write to."),
    "E243": Fault("a file name that says no form", "Traces are written in the form that the end of the name asks for, and this one asks for none.", "End the name in .json, .speedscope.json, .rust.json, .collapsed or .svg; .gz behind compresses."),
    "E244": Fault("a compressed file that is not whole", "The gzip data ends early or is damaged.", "Copy or record the file again."),
    "E245": Fault("a trace file that is not JSON", "The text breaks the rules of JSON where the message says, and no event in it could be read.", "Write the file again; one that was cut off has lost its end."),
    "E246": Fault("JSON that is nested too deeply", "Lists or objects stand inside one another thousands of levels deep.", "A trace has no such nesting: check what wrote the file."),
    "E247": Fault("a trace file that is not UTF-8", "The bytes are no text in UTF-8.", "Give a trace in JSON or collapsed stacks, with gzip around it or without."),
    "E248": Fault("events that are not those of a trace", "A field of the file is missing or of another type, at the path that the message shows.", "Check what wrote the file; single events that cannot be read are skipped, but here none could."),
    "E249": Fault("a time out of range", "A time or weight is negative, not finite, or beyond 2^62 nanoseconds.", "Write times in the unit of the format: microseconds for Chrome, the stated unit for speedscope."),
    "E250": Fault("a speedscope profile of another type", "Only evented profiles in a unit of time are read.", "Export the profile as evented, in nanoseconds to seconds."),
    "E251": Fault("begins and ends that do not match", "An event ends without a begin, never ends, or time goes back.", "Check what wrote the file, at the place that the message shows."),
    "E252": Fault("a line that is no stack", "A line of collapsed stacks is frames with ';' between them, a space, and a number.", "Write lines such as: main;load;parse 12."),
    "E253": Fault("a compressed file that unpacks too far", "The file unpacks to far more than traces do, which may be an attack on memory.", "If it is right, unpack it first with gunzip."),
    "E254": Fault("a flame graph with another ending", "Flame graphs are SVG files.", "End the name in .svg or .svg.gz."),
    "E255": Fault("a kind that no entry has", "The trace has no entry of the kind that was asked for.", "Take one of the kinds that the hint shows."),
    "E256": Fault("a duration that JSON cannot hold", "An entry has a duration that is NaN or infinite.", "Give every entry a finite duration before the trace is written."),
    "E257": Fault("half a character", "A text holds one half of a surrogate pair, which UTF-8 cannot hold.", "Decode the text properly where it comes from."),
    "E258": Fault("an event without a time", "An event that happened at a time has no 'ts'.", "Check what wrote the file; single events of this sort are skipped, but here none could be read."),
    "E259": Fault("an event without a duration", "A complete event ('X') has no 'dur', or one that is negative or no number.", "Check what wrote the file; single events of this sort are skipped, but here none could be read."),
    # E30x to E32x: calls
    "E301": Fault("an argument of the wrong kind", "A function was given something that is not what it takes.", "Give what the message names; the hint shows how to make one."),
    "E310": Fault("a number out of range", "A count, limit or size is not a whole number, or is below the least that makes sense.", "Give a whole number in the range that the message states."),
    # E33x to E37x: planning
    # E4xx: backends
    # E5xx: running
    # E6xx: logic
    # E7xx: traces
    "E701": Fault("an entry that cannot be recorded", "A field of a RecordedTraceEntry is of another type or out of range.", "Correct the field that the message names."),
    "E702": Fault("JSON that is no recorded trace", "The text is not what RecordedExecutionTrace.to_json or the Rust crate writes, at the path that the message shows.", "Write the trace again with to_json."),
    "E703": Fault("JSON that is no trace", "The file is JSON, but none of the known forms.", "Give a Chrome, speedscope or recorded trace."),
    "E704": Fault("an unknown detail", "A trace records steps or operations.", "Write detail='step' or detail='op'."),
    "E705": Fault("JSON that is no profile", "The text is not what ProfileData.to_json writes.", "Write the profile again with to_json."),
    "E706": Fault("a file that is no baseline", "The file of saved times is damaged or of another kind.", "Take it from version control, or delete it and save anew."),
    "E711": Fault("an operation that was not started", "record_operation_end was given a handle that is not running, or twice.", "End an operation once, with the handle that record_operation_start returned."),
    "E713": Fault("no such breakpoint", "The breakpoint was removed before, or never made.", "print(manager) shows the breakpoints there are."),
    "E714": Fault("a run stopped at a breakpoint", "Someone gave the run up at the prompt.", "Type 'continue' instead, or remove the breakpoint."),
    "E715": Fault("a run too large to record", "The values of the run take more than max_bytes.", "Give the max_bytes that the hint names, or record a smaller input."),
    "E716": Fault("a folder that is no recording", "There is no recorded run in the folder.", "Record one: with ExecutionRecorder().capture(folder): ..."),
    "E717": Fault("a backend without values", "A backend that only infers shapes has nothing to compare.", "Replay on \"numpy\" or \"reference\"."),
    "E718": Fault("no runs to compare", "The profile or baseline holds no finished run.", "Call executor.enable_profiling() before the runs."),
    "E719": Fault("a run time that is no time", "A time in the profile or baseline is negative or not finite.", "Measure again."),
    "E720": Fault("an event with times that are no whole numbers", "Events begin and end at whole nanoseconds.", "Write int(1000 * microseconds)."),
    "E721": Fault("an event that ends before it starts", "The end of an event is smaller than its start.", "Swap them, or check the clock."),
    "E722": Fault("a negative size in a shape", "A recorded shape has a size below 0.", "Give the shape of the array as it is."),
    "E723": Fault("columns of different lengths", "The columns of a trace must have one number for each entry.", "Give arrays of equal length and one axis."),
    "E724": Fault("a column of numbers out of range", "Kinds and steps are whole numbers from 0, and a kind must be one of those given.", "Give integers within the range that the message states."),
    "E725": Fault("totals by something unknown", "Totals are by operation, device or thread.", "Give one of the three."),
    "E726": Fault("a percentage or confidence out of range", "Percentages lie between 0 and 100, a confidence between 0 and 1.", "Give a number in the range that the message states."),
    "E727": Fault("a time limit that is no time", "A breakpoint on slow steps needs a number of microseconds, 0 or more.", "Write add_time_threshold_breakpoint(5000)."),
    "E728": Fault("a threshold below 1", "The threshold is a ratio of times.", "Write 1.10 for 10% slower."),
    "E729": Fault("a case without a name", "A measured case is saved under its name.", "Write measure(\"layer\", function)."),
    "E730": Fault("a recording that cannot be written", "The system refuses to write the folder, or the values have no file format.", "Give a folder that you may write to."),
    "E732": Fault("a run or step beyond the recording", "The number is not one of the recorded runs or steps.", "Count from 0, or from -1 at the end."),
    "E733": Fault("files of a recording that do not belong together", "The graph, values and manifest of a recorded run disagree.", "Copy the folder whole, or record the run again."),
    "E734": Fault("a recording of another version", "The recording was written by a version with another format.", "Read it with the version that wrote it, or record again."),
    "E735": Fault("a recording that cannot be read", "A file of the recording is damaged, or cannot be opened.", "Copy the folder again, or record the run again."),
    "E736": Fault("a graph without known sizes in a recording", "A recorded graph has all of its sizes and dtypes; this one does not.", "Record a run; a graph file alone has no values."),
    "E737": Fault("nothing was measured", "check() and save() need at least one measured case.", "Call perf.measure(name, function) first."),
    # E8xx: views and memory
    # E9xx: eager execution and gradients
}  # fmt: skip
