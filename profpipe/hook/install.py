"""Watch an unmodified program: install the hooks of torch that find its steps, when torch has been imported."""

from __future__ import annotations

import functools
import importlib
import itertools
import re
import sys
import threading
import types
import weakref
from typing import Any, Callable, Dict, Tuple

from profpipe import ranges
from profpipe.hook import changes, memory, modules, settings, span, steps
from profpipe.hook.steps import ProcessSteps

# --- functions of torch.compile --------------------------------------------------------------------------------------
#
# The hooks of torch run while torch.compile traces a function, and never again. So ``torch.compile`` is wrapped. Its
# functions are called by a wrapper that Dynamo does not trace: nothing is compiled twice, and no graph is broken.

#: Wraps ``compiled``, which torch.compile made of ``target``.
Wrap = Callable[[Any, Callable[..., Any]], Callable[..., Any]]

#: A step changes the parameters. So many of the first ones are looked at.
_PARAMETERS = 8


def wrap_compiled(torch: Any, wrap: Wrap, target_of: Callable[[Any], Any] = lambda model: model) -> None:
    """Pass the functions that torch.compile makes through ``wrap``. A compiled module stays as it is.

    ``target_of`` returns what is compiled in place of a model or function.
    """
    original = getattr(torch, "compile", None)
    if original is None:
        return

    @functools.wraps(original)
    def compile(model: Any = None, *args: Any, **kwargs: Any) -> Any:
        compiled = original(target_of(model), *args, **kwargs)
        # Without a model it is a decorator, which calls torch.compile again. A module is wrapped by its `__call__`.
        if model is None or isinstance(model, (type, torch.nn.Module)) or not callable(compiled):
            return compiled
        return wrap(model, compiled)

    torch.compile = compile


class OptimizerWatch:
    """The optimizers of the process, and how many of their steps were seen."""

    def __init__(self, torch: Any, is_compiling: Callable[[], bool], stepped: Callable[[Any], None]) -> None:
        self._is_compiling, self._stepped = is_compiling, stepped
        self._counts: Any = weakref.WeakKeyDictionary()
        self._watch_creation(torch.optim.Optimizer)

    def count(self, optimizer: Any) -> int:
        count: int = self._counts.get(optimizer, 0)
        return count

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
    if name == "torch":
        changes.apply(sys.modules["torch"])
    given, process_steps = settings.read(), steps.read_process_steps()
    if given is not None and given.capture is not None and name == "torch":
        _note_import(given.path("torch"))
        span.begin(given)
    if given is None or process_steps is None:
        return
    try:
        if name == "torch":
            _note_import(given.path("torch"))
            if given.profiler == "memory":
                memory.start(sys.modules["torch"], given, process_steps.record)
            _watch_torch(sys.modules["torch"], process_steps, given)
        elif name == "nvtx" and given.range is not None:
            _watch_nvtx(sys.modules["nvtx"], process_steps, given)
    except Exception as error:  # the import of the program must go on
        process_steps.not_installed(error, f"import of {name}")


def _note_import(path: str) -> None:
    with open(path, "a", encoding="utf-8"):
        pass


def _watch_torch(torch: Any, process_steps: ProcessSteps, given: settings.HookSettings) -> None:
    if given.range is not None:
        kind = torch.autograd.profiler.record_function
        _watch_opening(kind, "__enter__", lambda opened: getattr(opened, "name", ""), process_steps, given)
        for function in ("range_push", "range_start"):
            _watch_opening(torch.cuda.nvtx, function, _first_argument, process_steps, given)
    elif given.forward:
        watch = _ModuleWatch(torch, process_steps)
        wrap_compiled(torch, watch.wrap, watch.target)
    else:
        _watch_optimizers(torch, process_steps)
        if given.profiler in ("plain", "memory"):
            # The other profilers take the steps that plain finds.
            watch = _ModuleWatch(torch, process_steps)
            wrap_compiled(torch, watch.wrap, watch.target)
            process_steps.when_optimizer_steps(watch.end)
            if given.profiler == "plain":
                process_steps.note_memory_at_exit()


# --- optimizers ------------------------------------------------------------------------------------------------------


def _watch_optimizers(torch: Any, process_steps: ProcessSteps) -> None:
    # torch.optim deletes its attribute `optimizer`.
    library = importlib.import_module("torch.optim.optimizer")
    register = getattr(library, "register_optimizer_step_post_hook", None)
    if register is None:
        process_steps.note(
            f"torch {torch.__version__} has no hook for all optimizers: mark the steps with profpipe.step()"
        )
        return
    is_compiling = modules.compiling(torch)
    seen = OptimizerWatch(torch, is_compiling, functools.partial(process_steps.call, "optimizer"))

    def count_step(optimizer: Any, args: Any, kwargs: Any) -> None:
        # torch.compile traces this function as a part of the optimizer, where it must do nothing.
        if not is_compiling():
            seen.step(optimizer)

    register(count_step)
    wrap_compiled(torch, seen.wrap)
    _watch_skipped_steps(torch, process_steps, seen)


def _watch_skipped_steps(torch: Any, process_steps: ProcessSteps, seen: OptimizerWatch) -> None:
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
            process_steps.call("optimizer", optimizer)
        return result

    scaler._maybe_opt_step = maybe_step


# --- modules ---------------------------------------------------------------------------------------------------------


class _ThreadState(threading.local):
    """Whether this thread is inside a call of a module."""

    is_inside = False


class _ModuleWatch:
    """Begins a step at a call of a module that is not inside the call of another one.

    ``torch.nn.Module.__call__`` is replaced, and nothing is added to the modules of the program, which it may copy,
    save or script. A call inside another one takes 0.2 microseconds longer.
    """

    def __init__(self, torch: Any, process_steps: ProcessSteps) -> None:
        self._kind, self._steps, self._calls, self._has_ended = torch.nn.Module, process_steps, _ThreadState(), False
        self._original, self._is_compiling = self._kind.__call__, modules.compiling(torch)
        self._names: Dict[int, Tuple[Any, str]] = {}
        self._is_grad_enabled = torch.is_grad_enabled
        self._call = self._kind.__call__ = self._outermost(self._original)
        # Where a program replays the calls of its model as a CUDA graph, there are no calls.
        graph: Any = getattr(torch.cuda, "CUDAGraph", None)
        if hasattr(graph, "replay"):
            graph.replay = self._outermost(graph.replay)

    def _outermost(self, call: Callable[..., Any], owner: Any = None) -> Callable[..., Any]:
        """Return ``call``, a call of a module, with the begin of a step where it is not inside another one.

        The module is ``owner``, or the first argument.
        """
        is_compiling, calls, begin = self._is_compiling, self._calls, self._begin

        @functools.wraps(call)
        def outermost(*args: Any, **kwargs: Any) -> Any:
            # torch.compile takes the first condition for a constant, and traces nothing of this function.
            if is_compiling() or calls.is_inside:
                return call(*args, **kwargs)
            begin(args if owner is None else (owner, *args), kwargs)
            calls.is_inside = True
            try:
                return call(*args, **kwargs)
            finally:
                calls.is_inside = False

        return outermost

    def target(self, target: Any) -> Any:
        """Return what torch.compile is to compile: transformers passes ``model.__call__`` for a static cache."""
        if getattr(target, "__func__", None) is self._call:
            return types.MethodType(self._original, target.__self__)
        return target

    def wrap(self, target: Any, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``call`` with the begin of a step where torch.compile made it of a method that calls a module."""
        is_call = getattr(target, "__name__", "") in ("_call_impl", "_wrapped_call_impl", "__call__", "forward")
        if not isinstance(getattr(target, "__self__", None), self._kind) or not is_call:
            return call
        return self._outermost(call, target.__self__)

    def end(self) -> None:
        """Begin no step any more."""
        self._has_ended = True
        if self._kind.__call__ is self._call:
            self._kind.__call__ = self._original

    def _begin(self, args: Any, kwargs: Any) -> None:
        if _loads_data():
            self.end()  # transforms of images are modules
        if not self._has_ended:
            self._steps.boundary("forward", lambda: self._describe(args[0], _tokens(args[1:], kwargs)))

    def _describe(self, owner: Any, tokens: str) -> str:
        return self._name(owner) + tokens + " grad" * (isinstance(owner, self._kind) and self._is_grad_enabled())

    def _name(self, owner: Any) -> str:
        """Return the class of a module, and for further modules of that class a number: ``Linear``, ``Linear#2``.

        A number that belonged to a module which is gone is given again: some programs make modules for single calls.
        Graphs have one name: a server has one for a size of the batch.
        """
        if not isinstance(owner, self._kind):
            return ranges.REPLAY
        if type(owner).__name__ == "OptimizedModule":  # what torch.compile made of a module
            owner = owner._orig_mod
        reference, name = self._names.get(id(owner), (None, ""))
        if reference is None or reference() is not owner:
            name = re.sub(r"[^\w.]", "_", type(owner).__name__)[:_LONGEST_NAME]
            self._names = {key: pair for key, pair in self._names.items() if pair[0]() is not None}
            if len(self._names) < _MOST_NAMES:
                used = {pair[1] for pair in self._names.values()}
                numbered = (f"{name}#{number}" for number in itertools.count(2))
                name = next(candidate for candidate in itertools.chain([name], numbered) if candidate not in used)
                self._names[id(owner)] = (weakref.ref(owner), name)
        return name


#: Characters of the name of a class that are kept, and modules that have a number.
_LONGEST_NAME, _MOST_NAMES = 80, 1000


def _loads_data() -> bool:
    """Return True in a worker of torch's DataLoader."""
    data = sys.modules.get("torch.utils.data")
    return data is not None and data.get_worker_info() is not None


def _tokens(args: Any, kwargs: Any) -> str:
    """Return the tokens that a call of a model gets: `` 8x512`` is a batch of 8 times 512; empty for other inputs.

    The first tensor decides. Token ids are whole numbers (batch, length), embeddings floating-point numbers (batch,
    length, width). Servers join the tokens of all sequences: `` 512`` are ids (512,), followed by positions (512,).
    """
    # This runs at all steps, so it is written for speed: it takes 2 microseconds.
    try:
        tensors = [argument for argument in (*args, *kwargs.values()) if hasattr(argument, "is_floating_point")]
        if not tensors:
            return ""
        shape, is_id = tensors[0].shape, not tensors[0].is_floating_point()
        number = len(shape)
        if is_id and number == 1:
            second = tensors[1] if len(tensors) > 1 else None
            if second is None or second.is_floating_point() or second.shape != shape:
                return ""
            lengths: Tuple[Any, ...] = (shape[0],)
        elif number == (2 if is_id else 3):
            lengths = (shape[0], shape[1])
        else:
            return ""
        for length in lengths:
            # While torch.jit.trace records, a length is a tensor.
            if type(length) is not int or not length:
                return ""
        return " " + "x".join(map(str, lengths))
    except Exception:  # a tensor of another kind, such as a nested one, may have no such shape
        return ""


# --- ranges of the program -------------------------------------------------------------------------------------------


def _watch_nvtx(nvtx: Any, process_steps: ProcessSteps, given: settings.HookSettings) -> None:
    def message_of(opened: Any) -> Any:
        return getattr(getattr(opened, "attributes", None), "message", "")

    _watch_opening(nvtx.annotate, "__enter__", message_of, process_steps, given)
    for function in ("push_range", "start_range"):
        _watch_opening(nvtx, function, _first_argument, process_steps, given)


def _first_argument(*args: Any, **kwargs: Any) -> Any:
    return args[0] if args else kwargs.get("message", kwargs.get("msg", ""))


def _watch_opening(
    owner: Any, function: str, name_of: Callable[..., Any], process_steps: ProcessSteps, given: settings.HookSettings
) -> None:
    """Begin a step where ``owner.function`` opens a range of a chosen name; ``name_of`` takes it from the arguments."""
    original = getattr(owner, function)

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if given.range is not None and given.range.fullmatch(str(name_of(*args, **kwargs))):
            process_steps.boundary("marker")
        return original(*args, **kwargs)

    setattr(owner, function, call)
