"""What the seed's README shows, block by block and name by name, and where each part stands here.

The README is ``../shared/seeds/002_fa9ad736b90202da.txt``. Names stand here as it spells them; ``python_name`` says how
they are spelled in Python. A block whose capability is not in ``BUILT`` has tests marked with ``not_yet``.
"""

from __future__ import annotations

import pkgutil
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
SEED = ROOT.parent / "shared" / "seeds" / "002_fa9ad736b90202da.txt"

BUILT = frozenset(
    {
        "execution",
        "training",
        "diagnostics",
        "validation",
        "views",
        "backend testing",
        "project",
        "logic",
        "compiled graphs",
        "profiling",
        "tracing and debugging",
        "memory planning",
        "async",
        "batching",
        "recovery",
        "distributed",
        "scheduling and placement",
        "graph optimization",
        "strategies",
        "JIT",
        "gradients",
        "streaming",
        "quantization",
        "serving",
    }
)


def not_yet(capability: str, name: str) -> pytest.MarkDecorator:
    """Mark a test that fails only because ``name`` does not exist until ``capability`` is built."""
    return pytest.mark.xfail(
        strict=True, raises=(AttributeError, ImportError), reason=f"{capability}: tensorlogic.{name} is not there yet"
    )


class Block(NamedTuple):
    """One fenced block of the README."""

    number: int
    heading: str
    line: int  # of the opening fence, counted from 1
    language: str
    names: tuple[str, ...]  # the types, traits and methods it shows, as it spells them
    tests: tuple[str, ...]  # file::function
    capability: str
    instead: str = ""  # why there is no test


class Component(NamedTuple):
    """One name of the README's "Key Components" and "Architecture" listings."""

    name: str
    python: str  # its path inside the package
    capability: str


def _names(text: str) -> tuple[str, ...]:
    """Spell out ``A, B.c d`` as A, B, B.c, B.d."""
    found: list[str] = []
    for part in text.split(","):
        head, *rest = part.split()
        owner, dot, member = head.partition(".")
        found += [owner, *(f"{owner}.{m}" for m in ([member, *rest] if dot else rest))]
    return tuple(dict.fromkeys(found))


def _block(
    number: int,
    heading: str,
    line: int,
    names: str,
    tests: str,
    capability: str,
    *,
    language: str = "rust",
    instead: str = "",
) -> Block:
    file, _, functions = tests.partition("::")
    ids = tuple(f"{'test_seed_traits' if f.startswith('test_trait[') else file}.py::{f}" for f in functions.split())
    return Block(number, heading, line, language, _names(names) if names else (), ids, capability, instead)


# fmt: off
BLOCKS: tuple[Block, ...] = (
    _block(1, "Quick Start", 55, "TlExecutor, TlAutodiff.forward backward get_gradients, Scirs2Exec, EinsumGraph",
           "test_seed_gradients::test_quick_start", "gradients"),
    _block(2, "TlExecutor", 77, "TlExecutor.execute, EinsumGraph",
           "test_seed_core::test_trait[TlExecutor] test_tl_executor", "execution"),
    _block(3, "TlAutodiff", 94, "TlAutodiff.forward backward get_gradients",
           "test_seed_gradients::test_trait[TlAutodiff] test_tl_autodiff", "gradients"),
    _block(4, "TlBatchExecutor", 116, "TlBatchExecutor.execute_batch execute_batch_parallel optimal_batch_size, BatchResult",
           "test_seed_batch::test_trait[TlBatchExecutor] test_tl_batch_executor", "batching"),
    _block(5, "TlStreamingExecutor", 139, "TlStreamingExecutor.execute_stream execute_chunk, StreamingConfig, StreamResult, ChunkMetadata",
           "test_seed_streaming::test_trait[TlStreamingExecutor] test_tl_streaming_executor test_execute_chunk", "streaming"),
    _block(6, "TlStreamingExecutor", 161, "StreamingMode.FixedChunk DynamicChunk Adaptive, StreamingConfig.with_prefetch with_checkpointing",
           "test_seed_streaming::test_streaming_modes", "streaming"),
    _block(7, "TlCapabilities", 184, "TlCapabilities.capabilities, BackendCapabilities.devices dtypes features",
           "test_seed_core::test_trait[TlCapabilities] test_tl_capabilities", "execution"),
    _block(8, "TlProfiledExecutor", 200, "TlProfiledExecutor.enable_profiling disable_profiling get_profile_data, ProfileData.op_profiles",
           "test_seed_profiling::test_trait[TlProfiledExecutor] test_tl_profiled_executor", "profiling"),
    _block(9, "TlJitExecutor", 222, "TlJitExecutor.execute_jit get_jit_stats clear_jit_cache, JitConfig.with_hot_path_threshold with_max_cache_size, "
           "JitStats.hot_paths_detected cache_hit_rate",
           "test_seed_jit::test_trait[TlJitExecutor] test_tl_jit_executor", "JIT"),
    _block(10, "TlDistributedExecutor", 259, "TlDistributedExecutor.execute_distributed get_distributed_stats, DistributedConfig.with_strategy, "
           "DistributedStats.communication_time_ms computation_time_ms efficiency, DistributedParallelismStrategy.DataParallel, Device.GPU",
           "test_seed_distributed::test_trait[TlDistributedExecutor] test_tl_distributed_executor", "distributed"),
    _block(11, "TlDistributedExecutor", 296, "DistributedParallelismStrategy.DataParallel",
           "test_seed_distributed::test_data_parallel", "distributed"),
    _block(12, "TlDistributedExecutor", 303, "DistributedParallelismStrategy.ModelParallel, ShardingSpec.shard_tensor",
           "test_seed_distributed::test_model_parallel", "distributed"),
    _block(13, "TlDistributedExecutor", 311, "DistributedParallelismStrategy.PipelineParallel",
           "test_seed_distributed::test_pipeline_parallel", "distributed"),
    _block(14, "TlDistributedExecutor", 319, "DistributedParallelismStrategy.Hybrid",
           "test_seed_distributed::test_hybrid", "distributed"),
    _block(15, "TlRecoverableExecutor", 331, "TlRecoverableExecutor.execute_with_recovery save_checkpoint load_checkpoint, "
           "RecoveryConfig.with_strategy with_retry_policy with_checkpointing, RecoveryStrategy.RetryWithBackoff, RetryPolicy.exponential, "
           "RecoveryResult.Success PartialSuccess Failure",
           "test_seed_recovery::test_trait[TlRecoverableExecutor] test_tl_recoverable_executor test_checkpoint", "recovery"),
    _block(16, "Zero-Copy Tensor Operations", 377, "TensorView.is_contiguous rank compose, SliceSpec.Full Range Index Strided Reverse, "
           "ViewBuilder.range_dim index_dim with_offset build, TensorViewable",
           "test_seed_views::test_tensor_view test_view_builder test_compose test_slice_specs", "views"),
    _block(17, "Async Execution", 427, "TlAsyncExecutor.execute_async, TlAsyncBatchExecutor.execute_batch_async, "
           "TlAsyncStreamExecutor.execute_stream_async, AsyncExecutorPool.execute stats, AsyncConfig.with_max_concurrent with_backpressure_threshold",
           "test_seed_async::test_trait[TlAsyncExecutor] test_trait[TlAsyncBatchExecutor] test_trait[TlAsyncStreamExecutor] "
           "test_execute_async test_execute_batch_async test_execute_stream_async test_pool test_cancel", "async"),
    _block(18, "Enhanced Diagnostics", 499, "Diagnostic.error with_code with_context with_suggestion with_location format, "
           "SourceLocation.with_file with_line, TensorShape.static_shape, ShapeMismatchDiagnostic.create, MemoryDiagnostic.out_of_memory, "
           "PerformanceDiagnostic.slow_operation, DiagnosticCollector.add has_errors format_all error_count warning_count, Severity",
           "test_seed_diagnostics::test_diagnostic test_ready_made_diagnostics test_diagnostic_collector", "diagnostics"),
    _block(19, "Enhanced Diagnostics", 555, "", "test_seed_diagnostics::test_example_output", "diagnostics", language="text"),
    _block(20, "TlCompilableExecutor", 590, "TlCompilableExecutor.compile_graph execute_compiled, CompiledGraph.compilation_stats, "
           "CompilationConfig.with_optimization_level with_fusion_enabled with_constant_folding, OptimizationLevel.Aggressive, GraphCompiler",
           "test_seed_compilation::test_trait[TlCompilableExecutor] test_tl_compilable_executor", "compiled graphs"),
    _block(21, "TlCompilableExecutor", 637, "CompilationCache.get insert stats, CompilationKey.from_graph",
           "test_seed_compilation::test_compilation_cache", "compiled graphs"),
    _block(22, "GraphOptimizer", 661, "GraphOptimizer.analyze, OptimizationResult.fusion_opportunities dead_nodes estimated_speedup",
           "test_seed_optimization::test_graph_optimizer", "graph optimization"),
    _block(23, "FusionPlanner", 676, "FusionPlanner.find_fusion_opportunities, FusionType.ElementWise Reduction Einsum",
           "test_seed_optimization::test_fusion_planner", "graph optimization"),
    _block(24, "Scheduler", 695, "Scheduler.schedule, SchedulingStrategy.CostBased",
           "test_seed_optimization::test_scheduler", "scheduling and placement"),
    _block(25, "PlacementOptimizer", 716, "PlacementOptimizer.optimize, PlacementStrategy.LoadBalance, Device.CPU GPU",
           "test_seed_optimization::test_placement_optimizer", "scheduling and placement"),
    _block(26, "Memory Management", 732, "TensorCache.insert get, EvictionPolicy.LRU",
           "test_seed_optimization::test_tensor_cache", "memory planning"),
    _block(27, "Memory Management", 746, "MemoryPool.allocate deallocate stats",
           "test_seed_optimization::test_memory_pool", "memory planning"),
    _block(28, "ExecutionStrategy", 766, "ExecutionStrategy, ExecutionMode.Graph, PrecisionMode.FP32, MemoryStrategy.Optimize, ParallelismStrategy.Auto, "
           "GradientStrategy.Eager, StrategyOptimizer.optimize_for_throughput",
           "test_seed_optimization::test_execution_strategy", "strategies"),
    _block(29, "ExecutionContext", 788, "ExecutionContext.add_hook notify, LoggingHook, ExecutionPhase.GraphLoad Execution Complete",
           "test_seed_core::test_execution_context", "execution"),
    _block(30, "GraphValidator", 805, "GraphValidator.validate",
           "test_seed_core::test_graph_validator", "validation"),
    _block(31, "MemoryEstimator", 822, "MemoryEstimator.estimate",
           "test_seed_optimization::test_memory_estimator", "memory planning"),
    _block(32, "ShapeInferenceContext", 836, "ShapeInferenceContext.set_input_shape infer_shapes",
           "test_seed_core::test_shape_inference_context", "validation"),
    _block(33, "ExecutionTracer", 854, "ExecutionTracer.enable start_trace record_operation_start record_operation_end get_trace",
           "test_seed_debugging::test_execution_tracer", "tracing and debugging"),
    _block(34, "TensorInspector", 883, "TensorInspector.enable watch record_stats find_problematic_tensors, TensorStats.with_statistics",
           "test_seed_debugging::test_tensor_inspector", "tracing and debugging"),
    _block(35, "BreakpointManager", 910, "BreakpointManager.enable add_node_breakpoint add_operation_breakpoint add_numerical_issue_breakpoint "
           "add_time_threshold_breakpoint should_break continue_execution, Breakpoint",
           "test_seed_debugging::test_breakpoint_manager", "tracing and debugging"),
    _block(36, "ExecutionRecorder", 934, "ExecutionRecorder.enable tracer inspector breakpoints generate_report",
           "test_seed_debugging::test_execution_recorder", "tracing and debugging"),
    _block(37, "TimelineProfiler", 956, "TimelineProfiler.entries, ProfilerHook",
           "test_seed_profiling::test_timeline_profiler", "profiling"),
    _block(38, "BottleneckAnalyzer", 979, "BottleneckAnalyzer.analyze",
           "test_seed_profiling::test_bottleneck_analyzer", "profiling"),
    _block(39, "PerformanceComparison", 1002, "PerformanceBaseline.from_profile, PerformanceComparison.speedup memory_reduction_pct",
           "test_seed_profiling::test_performance_comparison", "profiling"),
    _block(40, "DummyExecutor", 1018, "DummyExecutor.execute",
           "test_seed_core::test_dummy_executor", "execution"),
    _block(41, "Basic Execution", 1030, "TlExecutor.execute, Scirs2Exec",
           "test_seed_core::test_basic_execution", "execution"),
    _block(42, "Batch Processing", 1044, "TlBatchExecutor.execute_batch_parallel",
           "test_seed_batch::test_batch_processing", "batching"),
    _block(43, "Streaming Large Datasets", 1056, "TlStreamingExecutor.execute_stream, StreamingConfig.with_prefetch, StreamingMode.Adaptive",
           "test_seed_streaming::test_streaming_large_datasets", "streaming"),
    _block(44, "Training with Autodiff", 1075, "TlAutodiff.forward backward get_gradients",
           "test_seed_gradients::test_training_with_autodiff", "gradients"),
    _block(45, "Architecture", 1098, "", "test_seed_map::test_components_cover_the_listings", "project", language="text"),
    _block(46, "Integration with Other Crates", 1171, "Scirs2Exec",
           "test_seed_core::test_reference_backend", "execution"),
    _block(47, "Integration with Other Crates", 1177, "Trainer, TrainerConfig",
           "test_seed_ecosystem::test_trainer", "training"),
    _block(48, "Integration with Other Crates", 1183, "compile",
           "test_seed_ecosystem::test_compile", "logic"),
    _block(49, "Benchmarking", 1203, "", "", "project", language="bash", instead="`make bench`"),
    _block(50, "Testing", 1209, "", "", "project", language="bash", instead="`make test`"),
)

# trait -> its methods with their parameters, those of the traits it extends included
TRAITS: dict[str, dict[str, tuple[str, ...]]] = {
    "TlExecutor": {"execute": ("graph", "inputs")},
    "TlAutodiff": {"execute": ("graph", "inputs"), "forward": ("graph", "inputs"), "backward": ("outputs", "output_grads"), "get_gradients": ()},
    "TlEagerAutodiff": {"variable": ("value", "requires_grad"), "backward": ("variable", "grad")},
    "TlBatchExecutor": {
        "execute": ("graph", "inputs"), "execute_batch": ("graph", "batch_inputs"),
        "execute_batch_parallel": ("graph", "batch_inputs", "num_threads"), "optimal_batch_size": ("graph",),
    },
    "TlStreamingExecutor": {"execute_stream": ("graph", "input_stream", "config"), "execute_chunk": ("graph", "chunk_inputs", "metadata")},
    "TlCompilableExecutor": {"execute": ("graph", "inputs"), "compile_graph": ("graph", "config"), "execute_compiled": ("compiled", "inputs")},
    "TlJitExecutor": {"execute": ("graph", "inputs"), "execute_jit": ("graph", "inputs", "config"), "get_jit_stats": (), "clear_jit_cache": ()},
    "TlDistributedExecutor": {"execute_distributed": ("graph", "inputs", "config"), "get_distributed_stats": ()},
    "TlRecoverableExecutor": {
        "execute": ("graph", "inputs"), "execute_with_recovery": ("graph", "inputs", "config"), "save_checkpoint": ("path",), "load_checkpoint": ("path",),
    },
    "TlCapabilities": {"capabilities": ()},
    "TlProfiledExecutor": {"execute": ("graph", "inputs"), "enable_profiling": (), "disable_profiling": (), "get_profile_data": ()},
    "TlAsyncExecutor": {"execute_async": ("graph", "inputs")},
    "TlAsyncBatchExecutor": {"execute_async": ("graph", "inputs"), "execute_batch_async": ("graph", "batch_inputs")},
    "TlAsyncStreamExecutor": {"execute_async": ("graph", "inputs"), "execute_stream_async": ("graph", "input_stream", "config")},
}

COMPONENTS: tuple[Component, ...] = tuple(Component(name, path or name, capability) for name, path, capability in (
    # core execution traits
    ("TlExecutor", "", "execution"),
    ("TlAutodiff", "", "gradients"),
    ("TlEagerAutodiff", "", "gradients"),
    ("TlBatchExecutor", "", "batching"),
    ("TlStreamingExecutor", "", "streaming"),
    ("TlCompilableExecutor", "", "compiled graphs"),
    ("TlJitExecutor", "", "JIT"),
    ("TlDistributedExecutor", "", "distributed"),
    ("TlRecoverableExecutor", "", "recovery"),
    ("TlCapabilities", "", "execution"),
    ("TlProfiledExecutor", "", "profiling"),
    ("TlAsyncExecutor", "", "async"),
    ("TlAsyncBatchExecutor", "", "async"),
    ("TlAsyncStreamExecutor", "", "async"),
    # optimization infrastructure
    ("GraphOptimizer", "", "graph optimization"),
    ("FusionPlanner", "", "graph optimization"),
    ("Scheduler", "", "scheduling and placement"),
    ("PlacementOptimizer", "", "scheduling and placement"),
    ("GraphCompiler", "", "compiled graphs"),
    ("CompilationCache", "", "compiled graphs"),
    ("MemoryEstimator", "", "memory planning"),
    ("ShapeInferenceContext", "", "validation"),
    ("JitCompiler", "", "JIT"),
    ("JitCache", "", "JIT"),
    ("HotPathDetector", "", "JIT"),
    ("AdaptiveOptimizer", "", "JIT"),
    # distributed execution
    ("DistributedExecutor", "", "distributed"),
    ("DataParallelCoordinator", "", "distributed"),
    ("ModelParallelCoordinator", "", "distributed"),
    ("PipelineParallelCoordinator", "", "distributed"),
    ("CommunicationBackend", "", "distributed"),
    # runtime utilities
    ("TensorCache", "", "memory planning"),
    ("MemoryPool", "", "memory planning"),
    ("TensorView", "", "views"),
    ("ViewBuilder", "", "views"),
    ("ExecutionStrategy", "", "strategies"),
    ("ExecutionContext", "", "execution"),
    ("GraphValidator", "", "validation"),
    ("AsyncExecutorPool", "", "async"),
    ("CheckpointManager", "", "recovery"),
    ("StreamProcessor", "", "streaming"),
    # debugging and profiling
    ("BottleneckAnalyzer", "", "profiling"),
    ("ExecutionTracer", "debug.ExecutionTracer", "tracing and debugging"),
    ("TensorInspector", "debug.TensorInspector", "tracing and debugging"),
    ("BreakpointManager", "debug.BreakpointManager", "tracing and debugging"),
    ("ExecutionRecorder", "debug.ExecutionRecorder", "tracing and debugging"),
    ("TimelineProfiler", "", "profiling"),
    ("Visualization", "EinsumGraph.to_dot, EinsumGraph.to_json, EinsumGraph.to_graphml", "execution"),
    # enhanced diagnostics
    ("Diagnostic", "", "diagnostics"),
    ("DiagnosticCollector", "", "diagnostics"),
    ("ShapeMismatchDiagnostic", "", "diagnostics"),
    ("MemoryDiagnostic", "", "diagnostics"),
    ("PerformanceDiagnostic", "", "diagnostics"),
    ("SourceLocation", "", "diagnostics"),
    # testing and development tools
    ("DummyExecutor", "", "execution"),
    ("BackendTestAdapter", "", "backend testing"),
    ("GradientChecker", "testing.GradientChecker", "gradients"),
    ("PerfRegression", "", "profiling"),
    ("Variable", "", "gradients"),
    ("EagerTape", "", "gradients"),
))

# tests of components that no block shows
LISTED: dict[str, str] = {
    "Visualization": "test_seed_listed.py::test_visualization",
    "BackendTestAdapter": "test_seed_listed.py::test_backend_test_adapter",
    "GradientChecker": "test_seed_listed.py::test_gradient_checker",
    "PerfRegression": "test_seed_profiling.py::test_perf_regression",
    "Variable": "test_seed_listed.py::test_variable_and_eager_tape",
    "EagerTape": "test_seed_listed.py::test_variable_and_eager_tape",
    "quantization.rs": "test_seed_listed.py::test_quantization",
    "dynamic_batching.rs": "test_seed_listed.py::test_dynamic_batching",
    "multimodel.rs": "test_seed_listed.py::test_multi_model_coordination",
}

# the README's "New Beta.1 Modules" have neither code nor type names; one name stands for each
MODULES: tuple[Component, ...] = (
    Component("quantization.rs", "QuantizationConfig", "quantization"),
    Component("dynamic_batching.rs", "DynamicBatcher", "serving"),
    Component("fusion.rs", "FusionOptimizer", "graph optimization"),
    Component("workspace.rs", "WorkspacePool", "memory planning"),
    Component("multimodel.rs", "MultiModelCoordinator", "serving"),
)

DEBUG = frozenset({"ExecutionTracer", "TensorInspector", "TensorStats", "BreakpointManager", "Breakpoint", "ExecutionRecorder"})
OTHERWISE = {"Scirs2Exec": "Executor"}
# variants that are called in Python because they hold values; the others are members in UPPER_CASE
CALLED = frozenset({
    "Device", "SliceSpec", "StreamingMode", "SchedulingStrategy", "DistributedParallelismStrategy", "RecoveryResult",
})
# fmt: on


def python_name(name: str) -> str:
    """Return where a name of the seed lives inside the package.

    >>> python_name("ExecutionPhase.GraphLoad"), python_name("ExecutionTracer.enable")
    ('ExecutionPhase.GRAPH_LOAD', 'debug.ExecutionTracer.enable')
    """
    for c in COMPONENTS:
        if c.name == name:
            return c.python
    owner, dot, member = name.partition(".")
    if member[:1].isupper() and not member.isupper() and owner not in CALLED:
        member = member if re.fullmatch(r"[A-Z]+\d+", member) else re.sub(r"(?<=[a-z])(?=[A-Z])", "_", member).upper()
    owner = OTHERWISE.get(owner, owner)
    return ("debug." if owner in DEBUG else "") + owner + dot + member


def look_up(path: str) -> Any:
    """Return what stands in the package under a dotted path, or None; a declared field of a class counts."""
    try:
        return pkgutil.resolve_name(f"tensorlogic.{path}")
    except (AttributeError, ImportError):
        pass
    owner, _, member = path.rpartition(".")
    found = look_up(owner) if owner else None
    if isinstance(found, type):
        return next(
            (c.__annotations__[member] for c in found.__mro__ if member in vars(c).get("__annotations__", {})), None
        )
    return None


def read_blocks(text: str) -> list[tuple[int, str, str]]:
    """Return (line, nearest heading, language) of every fenced block of a README."""
    found, heading, inside = [], "", False
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("```"):
            inside = not inside
            if inside:
                found.append((number, heading, line[3:].strip() or "text"))
        elif not inside and line.startswith("#"):
            heading = line.lstrip("#").strip()
    return found


def read_components(text: str) -> list[str]:
    """Return the names in the README's "Key Components" and "Architecture" listings."""
    listed = text[text.index("### Key Components") : text.index("## Quick Start")]
    tree = text[text.index("## Architecture") : text.index("## Integration with")]
    found = [n for bold in re.findall(r"^- \*\*(.+?)\*\*:", listed, re.M) for n in bold.split(" & ")]
    return [*found, *re.findall(r" ([A-Z]\w+) \(", tree)]
