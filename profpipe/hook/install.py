"""Watch an unmodified program: install the hooks of torch that find its steps, when torch has been imported."""

from __future__ import annotations

import functools
import importlib
import itertools
import sys
import weakref
from typing import Any, Callable, Dict, List, Optional, Tuple

from profpipe.hook import settings, span, steps
from profpipe.hook.steps import Steps

# --- functions of torch.compile --------------------------------------------------------------------------------------
#
# The hooks of torch run while torch.compile traces a function, and never again. So ``torch.compile`` is wrapped. Its
# functions are called by a wrapper that Dynamo does not trace: nothing is compiled twice, and no graph is broken.

#: Wraps ``compiled``, which torch.compile made of ``target``.
Wrap = Callable[[Any, Callable[..., Any]], Callable[..., Any]]

#: A step changes the parameters. So many of the first ones are looked at.
_PARAMETERS = 8


def wrap_compiled(torch: Any, wrap: Wrap) -> None:
    """Pass each function that torch.compile makes through ``wrap``. A compiled module stays as it is."""
    original = getattr(torch, "compile", None)
    if original is None:
        return

    @functools.wraps(original)
    def compile(model: Any = None, *args: Any, **kwargs: Any) -> Any:
        found = original(model, *args, **kwargs)
        # Without a model it is a decorator, which calls torch.compile again. A module is wrapped by its `__call__`.
        if model is None or isinstance(model, (type, torch.nn.Module)) or not callable(found):
            return found
        return wrap(model, found)

    torch.compile = compile


class OptimizerWatch:
    """The optimizers of the process, and how many steps of each were seen."""

    def __init__(self, torch: Any, is_compiling: Callable[[], bool], stepped: Callable[[Any], None]) -> None:
        self._is_compiling, self._stepped = is_compiling, stepped
        self._counts: Any = weakref.WeakKeyDictionary()
        self._watch_creation(torch.optim.Optimizer)

    def count(self, optimizer: Any) -> int:
        found: int = self._counts.get(optimizer, 0)
        return found

    def step(self, optimizer: Any) -> None:
        """Count a step of ``optimizer``, and report it."""
        self._counts[optimizer] = self.count(optimizer) + 1
        self._stepped(optimizer)

    def wrap(self, target: Any, compiled: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``compiled`` so that the step of an optimizer inside is seen by the change of its parameters."""

        @functools.wraps(compiled)
        def call(*args: Any, **kwargs: Any) -> Any:
            if self._is_compiling():
                return compiled(*args, **kwargs)
            before = self._states()
            result = compiled(*args, **kwargs)
            for optimizer, (count, versions) in before.items():
                if self.count(optimizer) == count and _versions(optimizer) != versions:
                    self.step(optimizer)
            return result

        return call

    def _states(self) -> Dict[Any, Tuple[int, Any]]:
        return {optimizer: (count, _versions(optimizer)) for optimizer, count in list(self._counts.items())}

    def _watch_creation(self, kind: Any) -> None:
        original = kind.__init__

        @functools.wraps(original)
        def create(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            original(optimizer, *args, **kwargs)
            self._counts.setdefault(optimizer, 0)

        kind.__init__ = create


def _versions(optimizer: Any) -> Any:
    """Return the numbers of changes of the first parameters, which torch counts for autograd."""
    parameters = itertools.chain.from_iterable(group["params"] for group in optimizer.param_groups)
    return [parameter._version for parameter in itertools.islice(parameters, _PARAMETERS)]


# --- the hooks -------------------------------------------------------------------------------------------------------


def after_import(name: str) -> None:
    """Install the hooks for the module ``name``, which this process has just imported."""
    given, found = settings.read(), steps.of_process()
    if given is not None and given.capture is not None and name == "torch":
        _note_import(given.path("torch"))
        span.begin(given)
    if given is None or found is None:
        return
    try:
        if name == "torch":
            _note_import(given.path("torch"))
            _watch_torch(sys.modules["torch"], found, given)
        elif name == "nvtx" and given.range is not None:
            _watch_nvtx(sys.modules["nvtx"], found, given)
    except Exception as error:  # the import of the program must go on
        found.not_installed(error, f"import of {name}")


def _note_import(path: str) -> None:
    with open(path, "a", encoding="utf-8"):
        pass


def _watch_torch(torch: Any, found: Steps, given: settings.Settings) -> None:
    if given.range is not None:
        kind = torch.autograd.profiler.record_function
        _watch_opening(kind, "__enter__", lambda opened: getattr(opened, "name", ""), found, given)
        for function in ("range_push", "range_start"):
            _watch_opening(torch.cuda.nvtx, function, _first_argument, found, given)
    elif given.forward:
        watch = _ModuleWatch(torch, found)
        wrap_compiled(torch, watch.wrap)
    else:
        _watch_optimizers(torch, found)
        if given.profiler == "plain":
            # The other profilers are told what plain has found.
            watch = _ModuleWatch(torch, found)
            wrap_compiled(torch, watch.wrap)
            found.when_optimizer_steps(watch.end)


# --- optimizers ------------------------------------------------------------------------------------------------------


def _watch_optimizers(torch: Any, found: Steps) -> None:
    # torch.optim deletes its attribute `optimizer`.
    library = importlib.import_module("torch.optim.optimizer")
    register = getattr(library, "register_optimizer_step_post_hook", None)
    if register is None:
        found.note(f"torch {torch.__version__} has no hook for all optimizers: mark the steps with profpipe.step()")
        return
    is_compiling = _compiling(torch)
    seen = OptimizerWatch(torch, is_compiling, functools.partial(found.call, "optimizer"))

    def after_step(optimizer: Any, args: Any, kwargs: Any) -> None:
        # torch.compile traces this function as a part of the optimizer, where it must do nothing.
        if not is_compiling():
            seen.step(optimizer)

    register(after_step)
    wrap_compiled(torch, seen.wrap)
    _watch_skipped_steps(torch, found, seen)


def _watch_skipped_steps(torch: Any, found: Steps, seen: OptimizerWatch) -> None:
    """Count an iteration whose optimizer GradScaler leaves out, because gradients overflowed."""
    scaler = getattr(getattr(torch, "amp", None), "GradScaler", None)
    original = getattr(scaler, "_maybe_opt_step", None)
    if scaler is None or original is None:
        return

    @functools.wraps(original)
    def maybe_step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        before = seen.count(optimizer)
        result = original(self, optimizer, *args, **kwargs)
        if seen.count(optimizer) == before:
            found.call("optimizer", optimizer)
        return result

    scaler._maybe_opt_step = maybe_step


def _compiling(torch: Any) -> Callable[[], bool]:
    """Return ``torch.compiler.is_compiling``, which torch.compile knows to be constant."""
    found: Optional[Callable[[], bool]] = getattr(getattr(torch, "compiler", None), "is_compiling", None)
    return found or (lambda: False)


# --- modules ---------------------------------------------------------------------------------------------------------


class _ModuleWatch:
    """Begins a step at each call of a module that no other module contains.

    A hook of all modules costs about a microsecond for each of them, which a small model notices. So it only lasts
    until a module is called for the second time, and hooks of the modules that began steps follow it. torch.compile
    compiles a model again when the hooks of all modules change: the hook goes before the first call of such a model.
    """

    def __init__(self, torch: Any, found: Steps) -> None:
        self._module, self._is_compiling, self._found = torch.nn.Module, _compiling(torch), found
        self._inner: Any = weakref.WeakSet()
        self._outer: Any = weakref.WeakSet()
        self._handles: List[Any] = []
        self._handle: Any = torch.nn.modules.module.register_module_forward_pre_hook(self._before_any)

    def wrap(self, target: Any, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``call`` with the begin of a step where ``model.compile()`` made it: there no hook runs."""
        module = getattr(target, "__self__", None)
        # Those of model.compile(), and of transformers, which compiles `model.__call__` for a static cache.
        is_call = getattr(target, "__name__", "") in ("_call_impl", "_wrapped_call_impl", "__call__", "forward")
        if not isinstance(module, self._module) or not is_call:
            return call

        @functools.wraps(call)
        def call_module(*args: Any, **kwargs: Any) -> Any:
            self._before_any(module, args, kwargs)
            return call(*args, **kwargs)

        return call_module

    def _before_any(self, module: Any, args: Any, kwargs: Any = None) -> None:
        if self._is_compiling() or module in self._inner:
            return
        is_known = module in self._outer
        if not is_known:
            self._outer.add(module)
            self._inner.update(child for child in module.modules() if child is not module)
        if self._handle is not None and (is_known or _is_compiled(module)):
            self._watch_outer()
        self._found.boundary("forward", _tokens(args, kwargs))

    def _before(self, module: Any, args: Any, kwargs: Any = None) -> None:
        if not self._is_compiling():
            self._found.boundary("forward", _tokens(args, kwargs))

    def _watch_outer(self) -> None:
        handle, self._handle = self._handle, None
        handle.remove()
        for each in self._outer:
            if each not in self._inner and getattr(each, "_compiled_call_impl", None) is None:
                try:
                    handle = each.register_forward_pre_hook(self._before, with_kwargs=True)
                except TypeError:  # torch before 2.0
                    handle = each.register_forward_pre_hook(self._before)
                self._handles.append(handle)

    def end(self) -> None:
        """Begin no step any more."""
        if self._handle is not None:
            self._watch_outer()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()


def _tokens(args: Any, kwargs: Any) -> Optional[Tuple[int, int]]:
    """Return batch and length of the tokens that a call of a model gets, by its first tensor; None for other inputs.

    Token ids are whole numbers (batch, length), embeddings floating-point numbers (batch, length, width).
    """
    for each in itertools.chain(args or (), (kwargs or {}).values()):
        if hasattr(each, "is_floating_point"):
            has_tokens = each.ndim == (3 if each.is_floating_point() else 2)
            return (int(each.shape[0]), int(each.shape[1])) if has_tokens else None
    return None


def _is_compiled(module: Any) -> bool:
    """Return True for what ``torch.compile(model)`` returns, and after ``model.compile()``."""
    library = sys.modules.get("torch._dynamo.eval_frame")
    is_wrapped = library is not None and isinstance(module, library.OptimizedModule)
    return is_wrapped or getattr(module, "_compiled_call_impl", None) is not None


# --- ranges of the program -------------------------------------------------------------------------------------------


def _watch_nvtx(nvtx: Any, found: Steps, given: settings.Settings) -> None:
    def message_of(opened: Any) -> Any:
        return getattr(getattr(opened, "attributes", None), "message", "")

    _watch_opening(nvtx.annotate, "__enter__", message_of, found, given)
    for function in ("push_range", "start_range"):
        _watch_opening(nvtx, function, _first_argument, found, given)


def _first_argument(*args: Any, **kwargs: Any) -> Any:
    return args[0] if args else kwargs.get("message", kwargs.get("msg", ""))


def _watch_opening(
    owner: Any, function: str, name_of: Callable[..., Any], found: Steps, given: settings.Settings
) -> None:
    """Begin a step where ``owner.function`` opens a range of a chosen name; ``name_of`` takes it from the arguments."""
    original = getattr(owner, function)

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if given.range is not None and given.range.fullmatch(str(name_of(*args, **kwargs))):
            found.boundary("marker")
        return original(*args, **kwargs)

    setattr(owner, function, call)
