"""Kernels for one list of argument types each: compiled, or loaded from disk, when they are first called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .code_cache import CodeCache
from .support import COMPILING, kernel

CODES, CODES_OUT = types.Array(types.int64, 1, "C", readonly=True), types.Array(types.int64, 1, "C")
PLACES, PLACES_OUT = types.Array(types.int32, 1, "C", readonly=True), types.Array(types.int32, 1, "C")
WORDS, WORDS_OUT = types.Array(types.uint64, 1, "C", readonly=True), types.Array(types.uint64, 1, "C")
FLAGS_OUT = types.Array(types.boolean, 1, "C")
NUMBER = types.int64


class Explicit:
    """A kernel that takes arguments of the given types, and whatever turns into them; it is never compiled for others.

    Arrays that are only read are declared read-only, so that both kinds can be given. A function that is made by another one says
    in ``made_for`` what it was made for, so that their machine code is told apart on disk.
    """

    def __init__(
        self, function: Callable[..., Any], signature: tuple[Any, ...], made_for: str = "", **options: Any
    ) -> None:
        self.__doc__, self.__name__ = function.__doc__, function.__name__
        self._dispatcher = kernel(function, **options)
        if made_for:
            self._dispatcher._cache = CodeCache(f"{function.__qualname__} {made_for}")
        self._signature = signature
        self._ready = False

    def __call__(self, *args: Any) -> Any:
        if not self._ready:
            self.load()
        return self._dispatcher(*args)

    def load(self) -> None:
        """Compile the kernel, or load it from disk, now."""
        with COMPILING:
            if not self._ready:
                self._dispatcher.compile(self._signature)
                self._dispatcher.disable_compile()
                self._ready = True


def explicit(*signature: Any) -> Callable[[Callable[..., Any]], Explicit]:
    """Decorate a function that numba compiles for one list of argument types."""
    return lambda function: Explicit(function, signature)


@intrinsic
def prefetch(typing: Any, array: Any, offset: Any) -> Any:
    """Have an element of an array brought near, for it will be read soon."""

    def make(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        data = context.make_array(sig.args[0])(context, builder, args[0]).data
        byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        function = builder.module.globals.get("llvm.prefetch.p0i8") or ir.Function(
            builder.module, kind, "llvm.prefetch.p0i8"
        )
        address = builder.bitcast(builder.gep(data, [args[1]]), byte)
        builder.call(function, [address, number(0), number(3), number(1)])
        return context.get_dummy_value()

    return types.void(array, types.int64), make
