# the public names, in the order data flows; __init__.py reads this file
from .diagnostics import Diagnostic as Diagnostic
from .diagnostics import DiagnosticCollector as DiagnosticCollector
from .diagnostics import MemoryDiagnostic as MemoryDiagnostic
from .diagnostics import NodeExecutionDiagnostic as NodeExecutionDiagnostic
from .diagnostics import PerformanceDiagnostic as PerformanceDiagnostic
from .diagnostics import Severity as Severity
from .diagnostics import ShapeMismatchDiagnostic as ShapeMismatchDiagnostic
from .diagnostics import SourceLocation as SourceLocation
from .diagnostics import TypeMismatchDiagnostic as TypeMismatchDiagnostic
from .errors import BackendError as BackendError
from .errors import ConvergenceError as ConvergenceError
from .errors import DTypeError as DTypeError
from .errors import ExecutionError as ExecutionError
from .errors import FormatError as FormatError
from .errors import GraphError as GraphError
from .errors import InputError as InputError
from .errors import OutOfMemoryError as OutOfMemoryError
from .errors import ShapeError as ShapeError
from .errors import SpecError as SpecError
from .errors import TensorLogicError as TensorLogicError
from .errors import ViewError as ViewError
from .ir.builder import GraphBuilder as GraphBuilder
from .ir.builder import Tensor as Tensor
from .ir.graph import EinsumGraph as EinsumGraph
from .ir.types import TensorShape as TensorShape
from .ir.types import TensorType as TensorType

__version__: str
