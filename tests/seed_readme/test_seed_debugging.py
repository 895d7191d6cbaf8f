"""The tools of ``tensorlogic.debug``, as the seed's README shows them."""

import time

import numpy as np


def test_execution_tracer():
    from tensorlogic.debug import ExecutionTracer

    tracer = ExecutionTracer()
    tracer.enable()
    tracer.start_trace(7)
    for node_id, seconds in ((2, 0.02), (3, 0.0)):
        handle = tracer.record_operation_start(node_id, "einsum", [0, 1])
        time.sleep(seconds)
        tracer.record_operation_end(handle, node_id, "einsum", [0, 1], [node_id], {"algebra": "real"})

    trace = tracer.get_trace()
    summary = trace.summary()
    assert summary.total_operations == 2
    slowest = trace.slowest_operations(5)
    assert [entry.node_id for entry in slowest] == [2, 3]
    assert slowest[0].duration_ms() >= 20
    assert summary.total_time_ms >= sum(entry.duration_ms() for entry in slowest) * 0.999


def test_tensor_inspector():
    from tensorlogic.debug import TensorInspector, TensorStats

    inspector = TensorInspector()
    inspector.enable()
    inspector.watch(4)

    good, bad = np.linspace(0, 1, 64 * 128), np.linspace(0, 1, 64 * 128)
    bad[:3], bad[5] = np.nan, np.inf
    for tensor_id, array in ((4, good), (5, bad)):
        sound = array[np.isfinite(array)]
        stats = TensorStats(tensor_id, [64, 128], "f64").with_statistics(
            sound.min(), sound.max(), sound.mean(), sound.std(), np.isnan(array).sum(), np.isinf(array).sum()
        )
        inspector.record_stats(stats)

    problematic = inspector.find_problematic_tensors()
    assert [(tensor.tensor_id, tensor.num_nans, tensor.num_infs) for tensor in problematic] == [(5, 3, 1)]


def test_breakpoint_manager():
    from tensorlogic.debug import BreakpointManager

    breakpoints = BreakpointManager()
    breakpoints.enable()
    breakpoints.add_node_breakpoint(3)
    breakpoints.add_operation_breakpoint("matmul")
    breakpoints.add_numerical_issue_breakpoint()
    breakpoints.add_time_threshold_breakpoint(5000)  # 5 ms

    assert breakpoints.should_break(1, "add", 10, False) is None
    for node_id, op_name, elapsed_us, has_nan in (
        (3, "add", 10, False),
        (1, "matmul", 10, False),
        (2, "add", 10, True),
        (4, "add", 9000, False),
    ):
        hit = breakpoints.should_break(node_id, op_name, elapsed_us, has_nan)
        assert hit.node_id == node_id
        breakpoints.continue_execution()


def test_execution_recorder():
    from tensorlogic.debug import ExecutionRecorder, ExecutionTracer

    recorder = ExecutionRecorder()
    recorder.enable()

    # all debugging features enabled
    assert isinstance(recorder.tracer(), ExecutionTracer)
    recorder.tracer().start_trace(7)
    handle = recorder.tracer().record_operation_start(5, "einsum", [0, 1])
    recorder.tracer().record_operation_end(handle, 5, "einsum", [0, 1], [5], {})
    recorder.inspector().watch(4)
    recorder.breakpoints().add_node_breakpoint(5)
    assert recorder.breakpoints().should_break(5, "einsum", 10, False).node_id == 5

    report = recorder.generate_report()
    assert "einsum" in str(report)
