"""Note what a program uses and what it computes, for `profpipe try`: its files of changes need it, and its losses tell
whether a change harms.

``PROFPIPE_OBSERVE`` is a JSON object: ``seed`` is added to each seed of the program, and with ``watch`` the files that
it writes outside of its folder are noted. At its end the process leaves ``hook.<stem>.observed.<pid>.json``:

* ``losses``: what ``backward`` was called on; ``gradient_norm`` at the first step of each optimizer, and
  ``parameter_change``, the norm of what its steps changed.
* ``output``: values of the first floating-point tensor that the outermost module returned first.
* ``uses``: devices, types, modules, optimizers, loaders and switches; ``places``: the line of each of them.
* ``written``: paths outside of the folder.
* ``blocks``: with ``switches``, names of changes that were applied, each is on in blocks of steps between blocks with
  none; by name, and "" for none, the ns of a step in each block.
* ``errors``: what could not be noted, and why. The program goes on.
"""

import functools
import json
import os
import random
import sys
import tempfile
import time
from typing import Any, Callable, Dict, List, Set

from profpipe import ranges
from profpipe.hook import changes, record, settings

#: Losses, values of the output, paths and optimizers that are kept, and bytes of parameters beside them.
_MOST_LOSSES, _MOST_VALUES, _MOST_PATHS, _MOST_OPTIMIZERS = 100_000, 4096, 20, 8
_MOST_BYTES = 2**31
#: Steps of a block, and those at its beginning that do not count.
_BLOCK, _SKIPPED = 5, 2
#: Calls of the outermost module that are looked at: an output that lives two calls later is kept by the program.
_CALLS = 3
#: A program that seeds nothing is repeatable under this seed. numpy takes 32 bits.
_SEED, _SEEDS = 20_261, 2**32


class _Observed:
    """What this process has shown so far."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.written: Set[str] = set()
        self.places: Dict[str, str] = {}
        self.uses: Dict[str, Any] = {}
        self.reset()
        # The child of a fork may train itself.
        os.register_at_fork(after_in_child=self.reset)

    def reset(self) -> None:
        self.pid = os.getpid()
        self.losses: List[Any] = []
        self.unscaled: Any = None
        self.gradients: Dict[int, Any] = {}
        self.starts: Dict[int, Any] = {}
        self.output: Any = None
        self.uses.update(optimizers=[], loaders=[], switches=[], cores=len(os.sched_getaffinity(0)))
        self.blocks: Dict[str, List[float]] = {}
        self.errors: List[str] = []

    def note(self, what: str, act: Callable[[], object]) -> None:
        """Call ``act``; an error of it is noted, for the program must not end by it."""
        try:
            act()
        except Exception as error:
            if len(self.errors) < _MOST_PATHS:
                self.errors.append(f"{what}: {type(error).__name__}: {error}"[:300])


def apply(torch: Any) -> None:
    given = json.loads(os.environ.get(ranges.OBSERVE_VARIABLE, "{}"))
    observed = _Observed(int(given.get("seed", 0)))
    _shift_seeds(torch, observed.seed)
    if given.get("watch"):
        _watch_files(torch, observed)
    _watch_calls(torch, observed)
    _watch_creation(torch.optim.Optimizer, observed, "optimizers", _describe_optimizer)
    _watch_creation(torch.utils.data.DataLoader, observed, "loaders", functools.partial(_describe_loader, torch))
    _watch_losses(torch, observed)
    if given.get("switches"):
        _alternate(torch, observed, given["switches"])
    record.at_end(functools.partial(_write, torch, observed))


# --- seeds -----------------------------------------------------------------------------------------------------------


def _shift_seeds(torch: Any, offset: int) -> None:
    """Seed what the program does not seed, and add ``offset`` to each seed that it gives."""
    owners = [(random, "seed"), (torch, "manual_seed"), (torch.cuda, "manual_seed_all")]
    numpy = sys.modules.get("numpy")
    owners += [(numpy.random, "seed")] if numpy is not None else []
    for owner, name in owners:
        original = getattr(owner, name)

        def seed(*args: Any, original: Any = original, **kwargs: Any) -> Any:
            def shift(value: Any) -> Any:
                return (value + offset) % _SEEDS if isinstance(value, int) and offset else value

            named = {key: value if key == "version" else shift(value) for key, value in kwargs.items()}
            return original(*map(shift, args[:1]), *args[1:], **named)

        original(_SEED + offset)
        setattr(owner, name, seed)


# --- files -----------------------------------------------------------------------------------------------------------


def _watch_files(torch: Any, observed: _Observed) -> None:
    """Note what is written or removed outside of the current folder, of temporary folders and of caches."""
    given = settings.read()
    home = os.path.expanduser("~")
    inside = [os.getcwd(), tempfile.gettempdir(), "/dev", "/proc", *([given.folder] if given is not None else [])]
    inside += [os.path.join(home, name) for name in (".cache", ".triton", ".nv", ".config")]
    roots = tuple(os.path.join(os.path.realpath(path), "") for path in inside)

    def note(path: Any) -> None:
        if isinstance(path, (str, os.PathLike)) and len(observed.written) < _MOST_PATHS:
            real = os.path.realpath(os.fspath(path))  # type: ignore[type-var]
            if isinstance(real, str) and not real.startswith(roots):
                observed.written.add(real)

    def audit(event: str, args: Any) -> None:
        if event == "open":
            if isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR):
                note(args[0])
        elif event in ("os.remove", "os.rmdir", "os.mkdir", "os.rename"):
            for path in args[: 2 if event == "os.rename" else 1]:
                note(path)

    sys.addaudithook(audit)
    # torch opens the file of a checkpoint in C++.
    save = torch.save

    @functools.wraps(save)
    def save_and_note(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
        note(f)
        return save(obj, f, *args, **kwargs)

    torch.save = save_and_note


# --- what the program uses -------------------------------------------------------------------------------------------


def _watch_creation(kind: Any, observed: _Observed, name: str, describe: Callable[[Any], Dict[str, Any]]) -> None:
    original = kind.__init__

    @functools.wraps(original)
    def create(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        observed.places.setdefault(name, changes.find_place())
        observed.note(name, lambda: observed.uses[name].append(describe(self)))

    kind.__init__ = create


def _describe_optimizer(optimizer: Any) -> Dict[str, Any]:
    given = optimizer.defaults
    return {
        "kind": type(optimizer).__name__,
        "fused": bool(given.get("fused")),
        "foreach": given.get("foreach"),
    }


def _describe_loader(torch: Any, loader: Any) -> Dict[str, Any]:
    is_iterable = isinstance(loader.dataset, torch.utils.data.IterableDataset)
    return {"workers": loader.num_workers, "prefetch": loader.prefetch_factor or 2, "is_iterable": is_iterable}


def _watch_calls(torch: Any, observed: _Observed) -> None:
    """Look at the first calls of the outermost module, and at what they return."""
    kind, returned, inside = torch.nn.Module, [], [False]  # type: ignore[var-annotated]
    original, is_compiling = kind.__call__, _is_compiling(torch)

    def look(result: Any) -> None:
        outputs = [leaf for leaf in torch.utils._pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        dense = [leaf for leaf in outputs if leaf.layout is torch.strided]
        floating = [leaf for leaf in dense if leaf.is_floating_point()]
        if not returned and floating:
            observed.output = floating[0].detach().flatten()[:_MOST_VALUES].clone()
        reference_to = torch.multiprocessing.reductions.StorageWeakRef
        returned.append([reference_to(leaf.untyped_storage()) for leaf in dense])
        if len(returned) == _CALLS:
            observed.uses["keeps_outputs"] = any(not reference.expired() for reference in returned[0])

    @functools.wraps(original)
    def call(module: Any, *args: Any, **kwargs: Any) -> Any:
        # Dynamo traces this function where the program compiles what calls the module.
        is_over = len(returned) == _CALLS or inside[0]
        if is_compiling() or is_over or next(module.parameters(), None) is None:
            return original(module, *args, **kwargs)
        inside[0], is_outermost = True, kind.__call__ is call
        if is_outermost:
            # Dynamo handles modules as they are.
            kind.__call__ = original
        if not returned:
            observed.places["module"] = changes.find_place()
            observed.note("module", lambda: observed.uses.update(_describe_module(torch, module)))
        try:
            result = original(module, *args, **kwargs)
        finally:
            inside[0] = False
            if is_outermost and len(returned) + 1 < _CALLS:
                kind.__call__ = call
        observed.note("output", lambda: look(result))
        return result

    kind.__call__ = call


def _is_compiling(torch: Any) -> Any:
    """Return the function that says whether torch.compile traces the code at this moment."""
    return getattr(getattr(torch, "compiler", None), "is_compiling", lambda: False)


def _describe_module(torch: Any, module: Any) -> Dict[str, Any]:
    kinds = {type(child).__name__ for child in module.modules()}
    device = changes.device_of(module)
    switches = ["CUDA_LAUNCH_BLOCKING"] if os.environ.get("CUDA_LAUNCH_BLOCKING") == "1" else []
    switches += ["set_detect_anomaly"] if torch.is_anomaly_enabled() else []
    return {
        "device": device,
        "types": sorted({str(parameter.dtype).rpartition(".")[2] for parameter in module.parameters()}),
        "is_autocast": bool(torch.is_autocast_enabled(device) if _takes_device(torch) else torch.is_autocast_enabled()),
        "is_compiled": type(module).__name__ == "OptimizedModule" or module._compiled_call_impl is not None,
        "convolutions": sorted(name for name in kinds if name.startswith("Conv")),
        "is_distributed": "DistributedDataParallel" in kinds,
        "threads": torch.get_num_threads(),
        "switches": switches,
        "precision": torch.get_float32_matmul_precision(),
        "benchmark": torch.backends.cudnn.benchmark,
        "is_deterministic": torch.are_deterministic_algorithms_enabled() or torch.backends.cudnn.deterministic,
    }


def _takes_device(torch: Any) -> bool:
    return tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 4)


# --- what it computes ------------------------------------------------------------------------------------------------


def _watch_losses(torch: Any, observed: _Observed) -> None:
    _watch_backward(torch, observed)
    _watch_first_steps(torch, observed)


def _watch_backward(torch: Any, observed: _Observed) -> None:
    backward, is_compiling = torch.Tensor.backward, _is_compiling(torch)

    def note_loss(loss: Any) -> None:
        is_capturing = loss.is_cuda and torch.cuda.is_current_stream_capturing()
        if loss.numel() == 1 and len(observed.losses) < _MOST_LOSSES and not is_capturing:
            observed.losses.append(loss.detach().clone())

    @functools.wraps(backward)
    def backward_and_note(self: Any, *args: Any, **kwargs: Any) -> Any:
        # Dynamo traces this function where the program compiles its step.
        if not is_compiling():
            unscaled, observed.unscaled = observed.unscaled, None
            observed.note("loss", lambda: note_loss(self if unscaled is None else unscaled))
        return backward(self, *args, **kwargs)

    torch.Tensor.backward = backward_and_note
    scaler = getattr(getattr(torch, "amp", None), "GradScaler", None)
    if scaler is not None:
        scale = scaler.scale

        @functools.wraps(scale)
        def scale_and_note(self: Any, outputs: Any) -> Any:
            observed.unscaled = outputs.detach() if isinstance(outputs, torch.Tensor) else None
            return scale(self, outputs)

        scaler.scale = scale_and_note


def _watch_first_steps(torch: Any, observed: _Observed) -> None:
    is_compiling = _is_compiling(torch)

    def note_start(optimizer: Any) -> None:
        held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        kept, size = [], 0
        for parameter in held:
            size += parameter.numel() * parameter.element_size()
            if size <= _MOST_BYTES:
                kept.append(parameter)
        observed.starts[id(optimizer)] = [(parameter, parameter.detach().to("cpu", copy=True)) for parameter in kept]
        squares = [float(p.grad.detach().float().square().sum()) for p in held if p.grad is not None]
        # A fused optimizer gets the gradients as GradScaler has scaled them.
        factor = getattr(optimizer, "grad_scale", None)
        observed.gradients[id(optimizer)] = (sum(squares) ** 0.5) / (1.0 if factor is None else float(factor))

    def before_step(optimizer: Any, args: Any, kwargs: Any) -> None:
        is_seen = id(optimizer) in observed.starts or len(observed.starts) == _MOST_OPTIMIZERS
        if not (is_compiling() or is_seen or settings.rank()):
            observed.starts[id(optimizer)] = []
            observed.note("parameters", lambda: note_start(optimizer))

    register = getattr(sys.modules.get("torch.optim.optimizer"), "register_optimizer_step_pre_hook", None)
    if register is not None:
        register(before_step)


# --- blocks ----------------------------------------------------------------------------------------------------------


def _alternate(torch: Any, observed: _Observed, names: List[str]) -> None:
    """Turn one change on in each second block of steps of the first optimizer, and time the blocks."""
    register = getattr(sys.modules.get("torch.optim.optimizer"), "register_optimizer_step_post_hook", None)
    # None is on in each second block.
    order = [name for changed in names for name in ("", changed)]
    first: List[Any] = []
    steps, began = [0], [0.0]

    def now() -> float:
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        return time.perf_counter()

    def switch(is_on: str) -> None:
        for name in names:
            sys.modules[f"profpipe_change_{name}"].switch(torch, name == is_on)

    def after_step(optimizer: Any, args: Any, kwargs: Any) -> None:
        if not first:
            first.append(optimizer)
            switch(order[0])
        if optimizer is not first[0]:
            return
        steps[0] += 1
        block, place = divmod(steps[0], _BLOCK)
        if place == _SKIPPED:
            began[0] = now()
        elif place == 0:
            ended = order[(block - 1) % len(order)]
            step_ns = 1e9 * (now() - began[0]) / (_BLOCK - _SKIPPED)
            observed.blocks.setdefault(ended, []).append(step_ns)
            switch(order[block % len(order)])

    if register is not None:
        register(after_step)


def _write(torch: Any, observed: _Observed) -> None:
    given = settings.read()
    # A forked worker inherits this function, and has shown nothing.
    is_own = observed.pid == os.getpid() and (observed.losses or "device" in observed.uses)
    if given is None or not is_own:
        return
    moved: List[float] = []

    def note_change() -> None:
        for pairs in observed.starts.values():
            squares = [float((now.detach().to("cpu") - then).float().square().sum()) for now, then in pairs]
            moved.append(sum(squares) ** 0.5)

    observed.note("parameters", note_change)
    document = {
        "rank": settings.rank() or 0,
        "losses": [float(loss) for loss in observed.losses],
        "gradient_norm": list(observed.gradients.values()),
        "parameter_change": moved,
        "output": [] if observed.output is None else observed.output.float().cpu().tolist(),
        "uses": observed.uses,
        "places": observed.places,
        "written": sorted(observed.written),
        "blocks": observed.blocks,
        "errors": observed.errors,
    }
    record.write_whole(given.path(f"observed.{os.getpid()}.json"), json.dumps(document).encode())
    observed.pid = 0
