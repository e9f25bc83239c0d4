"""The floating-point operations of one step, by the formulas of torch's flop counter (``torch.utils.flop_counter``).

They follow from the shapes of matrix products, convolutions and attention as the step executes them. Other operators
are not counted. Causal attention counts in full, and a product of an n x k and a k x m matrix is 2 n k m operations.
What is computed again is counted apart: it is no work of the model.
"""

from __future__ import annotations

import gc
import re
import sys
import threading
from collections import Counter
from typing import Any, Callable, Dict, List

from profpipe.hook import clock
from profpipe.hook.record import HookRecord

#: Operators of torch that may hold such work. Those without a formula are named.
_HEAVY = re.compile(r"^(?!_thnn).*?((^|_)(add|b|badd|int_|scaled_)?mm|grouped_mm|convolution|rnn|lstm|gru|attention)")
#: Namespaces of operators that hold no such work, beside aten.
_LIGHT = ("prim", "prims", "profiler", "c10d", "_c10d_functional", "c10d_functional", "fsdp", "symm_mem", "_dtensor")
#: The compiler makes do with so much less memory for what a step does not keep.
_MORE_MEMORY = 3
#: The backward pass of attention is five products, of which the first one computes the scores again.
_OF_BACKWARD = 0.8


class FlopStep:
    """Counts the operations of one step, in which nothing else is recorded."""

    def __init__(self, record: HookRecord) -> None:
        self._record = record
        self._count: Any = None
        self._number = -1

    def begin(self, number: int) -> None:
        """Count in the first step that begins. An error is written to the record, and the program goes on."""
        if self._number >= 0:
            return
        torch, self._number = sys.modules["torch"], number
        try:
            why = why_not(torch)
            if not why:
                count = FlopCount(torch, self._record)
                count.begin()
                self._count = count
        except Exception as error:
            why = "error"
            self._record.error(error, "counting of FLOPs")
        if why:
            self._record.write("flops", why=why)

    def end(self) -> None:
        """End the step in which operations are counted, if it has begun."""
        count = self._count
        if count is not None and count.end():
            self._count = None
            flops = {"by_type": {name: round(ops) for name, ops in count.by_type.items()}, "again": round(count.again)}
            self._record.write("flops", step=self._number, unknown=count.unknown, **flops)

    def abandon(self) -> None:
        """Count no more: the step has no end."""
        if self._count is not None:
            self._count.end()
            self._count, self._number = None, -1


def why_not(torch: Any) -> str:
    """Return why the operations of a step cannot be counted; empty where they can.

    A compiled program executes the step as it is written, without the compiler. That needs more memory.
    """
    try:
        from torch.utils.flop_counter import flop_registry  # noqa: F401
    except ImportError:
        return "torch"
    dynamo = sys.modules.get("torch._dynamo.utils")
    if dynamo is not None and dynamo.counters["frames"].get("ok"):
        if not hasattr(torch.compiler, "set_stance") or _has_block_masks():
            return "compiled"
        if not _has_room(clock.cuda()):
            return "memory"
    return "modes" if torch._C._len_torch_dispatch_stack() else ""


def _has_block_masks() -> bool:
    """Return True if the program uses flex_attention, which without the compiler holds a matrix of all scores."""
    kind = getattr(sys.modules.get("torch.nn.attention.flex_attention"), "BlockMask", None)
    return kind is not None and any(type(candidate) is kind for candidate in gc.get_objects())


def _has_room(library: Any) -> bool:
    """Return True if three times the memory that steps needed so far, beside what they keep, is there."""
    if library is None:
        return True
    kept, peak = library.memory_allocated(), library.max_memory_allocated()
    usable: int = library.mem_get_info()[0] + library.memory_reserved()
    return kept + _MORE_MEMORY * (peak - kept) <= usable


class FlopCount:
    """The operations between ``begin`` and ``end``, which one thread calls.

    ``by_type`` are FLOPs by data type, ``again`` those of what is computed again, and ``unknown`` the calls of what has
    no formula, by its name.
    """

    def __init__(self, torch: Any, record: HookRecord) -> None:
        from torch.utils.flop_counter import flop_registry

        self.by_type: Counter[str] = Counter()
        self.again = 0.0
        self.unknown: Counter[str] = Counter()
        self._torch, self._record = torch, record
        self._formulas = {str(packet): formula for packet, formula in flop_registry.items()}
        self._thread = threading.get_ident()
        self._mode = _mode(self._dispatch)
        self._restore: List[Callable[[], object]] = []

    def begin(self) -> None:
        """Raises what torch raises, and then counts nothing."""
        torch, triton = self._torch, sys.modules.get("triton.runtime.jit")
        try:
            if "torch._dynamo" in sys.modules and hasattr(torch.compiler, "set_stance"):
                stance = torch.compiler.set_stance("force_eager")
                self._restore.append(lambda: stance.__exit__(None, None, None))
            self._watch(torch.cuda.CUDAGraph, "replay", lambda graph: "CUDA graph")
            if triton is not None:
                self._watch(triton.JITFunction, "run", lambda kernel: f"triton.{kernel.__name__}")
            self._mode.__enter__()
        except Exception:
            self._undo()
            raise

    def end(self) -> bool:
        """Return False if it cannot end here, inside another mode or in another thread."""
        modes = self._torch._C._len_torch_dispatch_stack()
        is_last = modes and self._torch._C._get_dispatch_stack_at(modes - 1) is self._mode
        if not is_last or threading.get_ident() != self._thread:
            return False
        self._mode.__exit__(None, None, None)
        self._undo()
        return True

    def _undo(self) -> None:
        while self._restore:
            self._restore.pop()()

    def _watch(self, kind: Any, method: str, name: Callable[[Any], str]) -> None:
        """Name what is called without an operator of torch."""
        original = getattr(kind, method)

        def call(callee: Any, /, *args: Any, **kwargs: Any) -> Any:
            self.unknown[name(callee)] += 1
            return original(callee, *args, **kwargs)

        setattr(kind, method, call)
        self._restore.append(lambda: setattr(kind, method, original))

    def _dispatch(self, func: Any, types: Any, args: Any, kwargs: Dict[str, Any]) -> Any:
        packet = getattr(func, "_overloadpacket", None)
        if packet is None:  # an operator of higher order
            self.unknown[str(func)] += 1
            return func(*args, **kwargs)
        # Tensors of another kind, such as a part of a distributed one, do their work in other operators.
        if any(kind not in (self._torch.Tensor, self._torch.nn.Parameter) for kind in types):
            return NotImplemented
        formula = self._formulas.get(str(packet).replace("_for_cpu", ""))
        if formula is None and func is not self._torch.ops.prim.device.default:
            with self._mode:
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        result = func(*args, **kwargs)
        try:
            self._add(str(packet), formula, args, kwargs, result)
        except Exception as error:  # the program must go on
            self.unknown[str(packet)] += 1
            self._record.error(error, "counting of FLOPs")
        return result

    def _add(self, packet: str, formula: Any, args: Any, kwargs: Dict[str, Any], result: Any) -> None:
        namespace, _, name = packet.partition(".")
        if formula is None:
            if _HEAVY.search(name) if namespace == "aten" else namespace not in _LIGHT:
                self.unknown[packet] += 1
            return
        flops = formula(*_expand_heads(name, args), **kwargs, out_val=result)
        if "attention" in name and "backward" in name:
            self.again += (1 - _OF_BACKWARD) * flops
            flops *= _OF_BACKWARD
        # The backward pass runs with gradients off. A part of the forward pass that it repeats has them on.
        if self._torch._C._current_graph_task_id() != -1 and self._torch.is_grad_enabled():
            self.again += flops
        else:
            self.by_type[self._type_of(args)] += flops

    def _type_of(self, args: Any) -> str:
        """Return the data type of the first tensor: float32 is tf32 where torch may use that for matrix products."""
        torch = self._torch
        dtype = str(next(tensor.dtype for tensor in args if isinstance(tensor, torch.Tensor))).replace("torch.", "")
        is_tf32 = dtype == "float32" and torch.get_float32_matmul_precision() != "highest"
        return "tf32" if is_tf32 else dtype


def _expand_heads(name: str, args: Any) -> Any:
    """Return the arguments of attention with as many heads of keys and values as of queries.

    Where several heads share keys and values (grouped-query attention), the formulas of torch 2.11 and before raise
    AssertionError. The work is that of all heads of the queries.
    """
    if not name.startswith("_scaled_dot_product"):
        return args
    first = 1 if "backward" in name else 0
    query, *shared = args[first : first + 3]
    # The formulas read shapes only, so a view that takes no memory will do.
    shared = [tensor[:, :1].expand(-1, query.shape[1], -1, -1) for tensor in shared]
    return (*args[:first], query, *shared, *args[first + 3 :])


def _mode(dispatch: Callable[..., Any]) -> Any:
    """Return a mode of torch that passes operators to ``dispatch``."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Mode(TorchDispatchMode):
        #: Otherwise operators of higher order refuse to work.
        supports_higher_order_operators = True

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return dispatch(func, types, args, kwargs or {})

    return Mode()
