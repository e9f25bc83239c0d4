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
"""

import atexit
import functools
import json
import os
import random
import sys
import tempfile
import time
from typing import Any, Dict, List, Set

from profpipe import ranges
from profpipe.hook import changes, settings

#: Losses, values of the output and paths that are kept.
_MOST_LOSSES, _MOST_VALUES, _MOST_PATHS = 100_000, 4096, 20
#: Calls of the outermost module that are looked at: an output that lives two calls later is kept by the program.
_CALLS = 3
#: Steps of a block, and those at its beginning that do not count.
_BLOCK, _SKIPPED = 5, 2
#: A program that seeds nothing is repeatable under this seed.
_SEED = 20_261


class _Observed:
    """What this process has shown so far."""

    def __init__(self, seed: int) -> None:
        self.seed, self.pid = seed, os.getpid()
        self.losses: List[Any] = []
        self.gradients: Dict[int, Any] = {}
        self.starts: Dict[int, Any] = {}
        self.output: Any = None
        self.uses: Dict[str, Any] = {"optimizers": [], "loaders": [], "switches": [], "cores": _cores()}
        self.places: Dict[str, str] = {}
        self.written: Set[str] = set()
        self.blocks: Dict[str, List[float]] = {}


def apply(torch: Any) -> None:
    given = json.loads(os.environ.get(ranges.OBSERVE_VARIABLE, "{}"))
    observed = _Observed(int(given.get("seed", 0)))
    _shift_seeds(torch, observed.seed)
    if given.get("watch"):
        _watch_files(torch, observed)
    _watch_calls(torch, observed)
    _watch_creation(torch.optim.Optimizer, observed, _describe_optimizer)
    loader = torch.utils.data.DataLoader
    _watch_creation(loader, observed, _describe_loader)
    _watch_losses(torch, observed)
    if given.get("switches"):
        _alternate(torch, observed, given["switches"])
    atexit.register(_write, torch, observed)


def _cores() -> int:
    return len(os.sched_getaffinity(0))


# --- seeds -----------------------------------------------------------------------------------------------------------


def _shift_seeds(torch: Any, offset: int) -> None:
    """Seed what the program does not seed, and add ``offset`` to each seed that it gives."""
    owners = [(random, "seed"), (torch, "manual_seed")]
    numpy = sys.modules.get("numpy")
    owners += [(numpy.random, "seed")] if numpy is not None else []
    for owner, name in owners:
        original = getattr(owner, name)

        def seed(value: Any = None, *args: Any, original: Any = original, **kwargs: Any) -> Any:
            moved = value + offset if isinstance(value, int) else value
            return original(moved, *args, **kwargs)

        original(_SEED + offset)
        setattr(owner, name, seed)


# --- files -----------------------------------------------------------------------------------------------------------


def _watch_files(torch: Any, observed: _Observed) -> None:
    """Note the files that are opened for writing outside of the current folder, of temporary folders and of caches."""
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
        if event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR):
            note(args[0])

    sys.addaudithook(audit)
    # torch opens the file of a checkpoint in C++.
    save = torch.save

    def save_and_note(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
        note(f)
        return save(obj, f, *args, **kwargs)

    torch.save = save_and_note


# --- what the program uses -------------------------------------------------------------------------------------------


def _watch_creation(kind: Any, observed: _Observed, describe: Any) -> None:
    original = kind.__init__

    @functools.wraps(original)
    def create(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        # A class that calls this of its base creates one object.
        place = changes.find_place()
        name, fields = describe(self)
        observed.places.setdefault(name, place)
        observed.uses[name].append(fields)

    kind.__init__ = create


def _describe_optimizer(optimizer: Any) -> Any:
    given = optimizer.defaults
    return "optimizers", {
        "kind": type(optimizer).__name__, "fused": bool(given.get("fused")), "foreach": given.get("foreach"),
    }  # fmt: skip


def _describe_loader(loader: Any) -> Any:
    return "loaders", {"workers": loader.num_workers, "prefetch": loader.prefetch_factor or 2}


def _watch_calls(torch: Any, observed: _Observed) -> None:
    """Look at the first calls of the outermost module, and at what they return."""
    kind, returned, inside = torch.nn.Module, [], [False]  # type: ignore[var-annotated]
    original, is_compiling = kind.__call__, _is_compiling(torch)
    reference_to = torch.multiprocessing.reductions.StorageWeakRef

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
            observed.uses.update(_describe_module(torch, module))
        try:
            result = original(module, *args, **kwargs)
        finally:
            inside[0] = False
            if is_outermost and len(returned) + 1 < _CALLS:
                kind.__call__ = call
        outputs = [leaf for leaf in torch.utils._pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        floating = [leaf for leaf in outputs if leaf.is_floating_point()]
        if not returned and floating:
            observed.output = floating[0].detach().flatten()[:_MOST_VALUES].clone()
        returned.append([reference_to(leaf.untyped_storage()) for leaf in outputs])
        if len(returned) == _CALLS:
            observed.uses["keeps_outputs"] = any(not reference.expired() for reference in returned[0])
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
    backward = torch.Tensor.backward

    def backward_and_note(self: Any, *args: Any, **kwargs: Any) -> Any:
        is_capturing = self.is_cuda and torch.cuda.is_current_stream_capturing()
        if self.numel() == 1 and len(observed.losses) < _MOST_LOSSES and not is_capturing:
            observed.losses.append(self.detach().clone())
        return backward(self, *args, **kwargs)

    torch.Tensor.backward = backward_and_note
    is_compiling = _is_compiling(torch)

    def before_step(optimizer: Any, args: Any, kwargs: Any) -> None:
        if is_compiling() or id(optimizer) in observed.gradients:
            return
        held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        squares = [p.grad.detach().float().square().sum() for p in held if p.grad is not None and not p.grad.is_sparse]
        observed.gradients[id(optimizer)] = torch.stack([square.cpu() for square in squares]).sum() if squares else None
        observed.starts[id(optimizer)] = [(parameter, parameter.detach().to("cpu", copy=True)) for parameter in held]

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
    # A forked worker inherits this function.
    if given is None or observed.pid != os.getpid() or not (observed.losses or "device" in observed.uses):
        return
    gradients = [float(square) ** 0.5 for square in observed.gradients.values() if square is not None]
    moved = [
        sum(float((now.detach().to("cpu") - then).float().square().sum()) for now, then in pairs) ** 0.5
        for pairs in observed.starts.values()
    ]
    document = {
        "rank": settings.rank() or 0,
        "losses": [float(loss) for loss in observed.losses],
        "gradient_norm": gradients,
        "parameter_change": moved,
        "output": [] if observed.output is None else observed.output.float().cpu().tolist(),
        "uses": observed.uses,
        "places": observed.places,
        "written": sorted(observed.written),
        "blocks": observed.blocks,
    }
    with open(given.path(f"observed.{os.getpid()}.json"), "w", encoding="utf-8") as file:
        json.dump(document, file)
