"""Ranges around the calls of the modules of a program, for a few steps that torch.profiler records."""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from typing import Any, Callable, Dict, Tuple

from profpipe import ranges
from profpipe.hook.record import HookRecord

#: Modules that only wrap another one, which they hold as the attribute; its name is no part of a path.
_WRAPPERS = {
    "DistributedDataParallel": "module",
    "DataParallel": "module",
    "FullyShardedDataParallel": "_fsdp_wrapped_module",
    "OptimizedModule": "_orig_mod",
    "CheckpointWrapper": "_checkpoint_wrapped_module",
}
#: Names of these attributes that no other module has.
_ATTRIBUTES = {name for name in _WRAPPERS.values() if name.startswith("_")}


def compiling(torch: Any) -> Callable[[], bool]:
    """Return ``torch.compiler.is_compiling``, which torch.compile knows to be constant."""
    is_compiling: Any = getattr(getattr(torch, "compiler", None), "is_compiling", None)
    return is_compiling or (lambda: False)


class _CallDepth(threading.local):
    """How many calls of modules this thread is in."""

    depth = 0


class ModuleRanges:
    """Opens a range around a call of a module from ``install`` to ``remove``.

    ``torch.nn.Module.__call__`` is replaced in between, so that other steps take as long as without ranges. A range is
    named by the path of the module in the outermost one that is called, and by its class.
    """

    def __init__(self, torch: Any, record: HookRecord) -> None:
        self._torch, self._record = torch, record
        self._calls = _CallDepth()
        #: By id, which another module may get later.
        self._names: Dict[int, Tuple[Any, str]] = {}
        #: How many outermost modules there are, by the names of their classes.
        self._roots: Dict[str, int] = {}
        self._original: Any = None
        self._call: Any = None

    @property
    def are_possible(self) -> bool:
        """Return True from torch 2.2 on, whose fast ranges disturb neither torch.jit.trace nor a dispatch mode."""
        return hasattr(getattr(getattr(self._torch, "_C", None), "_profiler", None), "_RecordFunctionFast")

    def install(self) -> None:
        """Begin the ranges, if they have not begun."""
        if self._call is not None:
            return
        kind = self._torch.nn.Module
        self._original = kind.__call__
        self._call = kind.__call__ = self._wrap_call(self._original)

    def remove(self) -> None:
        kind = self._torch.nn.Module
        # Another wrapper of the program may lie around this one; calls then go on without ranges.
        if self._call is not None and kind.__call__ is self._call:
            kind.__call__ = self._original
        self._call = None
        self._names.clear()

    def _wrap_call(self, original: Callable[..., Any]) -> Callable[..., Any]:
        is_compiling, calls = compiling(self._torch), self._calls

        def call(*args: Any, **kwargs: Any) -> Any:
            # torch.compile takes the first condition for a constant, and traces nothing of this function.
            if is_compiling() or self._call is None:
                return original(*args, **kwargs)
            opened = self._open(args[0])
            calls.depth += 1
            try:
                return original(*args, **kwargs)
            finally:
                calls.depth -= 1
                if opened is not None:
                    opened.__exit__(None, None, None)

        # Otherwise torch.compile would compile this function too where a compiled one calls a module.
        skip = getattr(sys.modules.get("torch._dynamo.eval_frame"), "skip_code", None)
        if skip is not None:
            skip(call.__code__)
        return functools.wraps(original)(call)

    def _open(self, module: Any) -> Any:
        try:
            if id(module) not in self._names or self._names[id(module)][0]() is not module:
                self._name(module)
            opened = self._make_range(self._names[id(module)][1])
            opened.__enter__()
        except Exception as error:  # the call of the program must go on
            self._record.error(error, "modules")
            return None
        return opened

    def _make_range(self, name: str) -> Any:
        return self._torch._C._profiler._RecordFunctionFast(name)

    def _name(self, module: Any) -> None:
        """Name ``module``, and the modules inside it if no other one calls it. A shared one has its first name.

        Where the ranges begin inside a call, what it calls next is named as if nothing called it, until it is called
        again.
        """
        inside = _wrapped(module)
        root = _kind(inside).__name__
        if not self._calls.depth:
            self._roots[root] = self._roots.get(root, 0) + 1
            if self._roots[root] > 1:
                root = f"{root}#{self._roots[root]}"
        named_modules = [("", module)] if self._calls.depth else [("", module), *inside.named_modules()]
        for path, submodule in named_modules:
            parts = [root, *(part for part in path.split(".") if part and part not in _ATTRIBUTES)]
            text = f"{'.'.join(parts)}:{_kind(_wrapped(submodule)).__name__}"
            self._names[id(submodule)] = (weakref.ref(submodule), ranges.encode_name(ranges.MODULE_PREFIX + text))


class ModuleMetadata(ModuleRanges):
    """Has torch's allocator keep the path of the module that is called with what is allocated."""

    #: Whether a module was called under autocast.
    is_autocast = False

    def _make_range(self, name: str) -> Any:
        self.is_autocast = self.is_autocast or self._torch.is_autocast_enabled()
        path = name[len(ranges.MODULE_PREFIX) :].rpartition(":")[0]
        return _Metadata(self._torch._C, path)


class _Metadata:
    def __init__(self, library: Any, text: str) -> None:
        self._library, self._text = library, text

    def __enter__(self) -> None:
        self._before = self._library._cuda_getMemoryMetadata()
        self._library._cuda_setMemoryMetadata(self._text)

    def __exit__(self, *error: object) -> None:
        self._library._cuda_setMemoryMetadata(self._before)


def _wrapped(module: Any) -> Any:
    """Return the module inside the wrappers of torch."""
    while (name := _WRAPPERS.get(type(module).__name__)) and hasattr(module, name):
        module = getattr(module, name)
    return module


def _kind(module: Any) -> Any:
    """Return the class of a module; of one that ``fully_shard`` changed, the one before."""
    kinds = type(module).__mro__
    return kinds[2] if len(kinds) > 2 and kinds[1].__name__ == "FSDPModule" else kinds[0]
