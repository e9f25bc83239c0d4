"""Short kernel names: the kernel, and what distinguishes it from kernels of the same template."""

from __future__ import annotations

import re
from collections.abc import Iterable

#: What distinguishes instances of a generic kernel: the functor or the operation that it is instantiated with.
_TELLING = re.compile(
    r"\b(?!gpu_kernel|\w*elementwise_kernel)\w*(?:_kernel_cuda|_kernel_impl|_kernel|Functor_?\w*|Ops?)\b"
    r"(?:<[\w:., ]{1,24}>)?"
)

#: Wrappers among those: what they wrap is more specific.
_WRAPPER = re.compile(r"(?:Reduce|[AB]?(?:Unary|Binary))(?:Ops?|Functor)|gpu_index_kernel")

#: A kernel made for a lambda carries the function that the lambda was written in.
_LAMBDA_OF = re.compile(r"(\w+)\([^()]*\)(?:::|[ ]?const)*\{lambda")

#: What generated names say the same of all of them: cuBLAS's between the tile and the end, cuDNN's maker.
_GENERATED = re.compile(r"_stage\d+_warpsize\w*?_(?=cublas|cudnn|cutlass|$)|_generated_fort_native_")

_LONGEST = 4_000

#: Kernels whose own name says nothing of what they do.
_GENERIC = re.compile(r"elementwise_kernel|reduce_kernel|multi_tensor_apply_kernel|device_kernel|Kernel2?$|kentry")


def shorten(name: str, width: int = 72) -> str:
    """Shorten a kernel's name to about ``width`` characters: the function, and the argument that distinguishes it.

    ``at::elementwise_kernel<128, 4, at::gpu_kernel_impl_nocast<at::direct_copy_kernel_cuda(...)...`` becomes
    ``elementwise_kernel<…direct_copy_kernel_cuda…>``.
    """
    # A long name is searched in its beginning: the search takes time by the square of the length.
    base, arguments = _taken_apart(" ".join(name[:_LONGEST].split()).replace("(anonymous namespace)::", ""))
    if not arguments:
        return _cut(base if len(base) <= width else _GENERATED.sub("…", base), width)
    whole = f"{base}<{arguments}>"
    if len(whole) <= width:
        return whole
    telling = _telling(arguments, generic=bool(_GENERIC.search(base)))
    if telling:
        return _cut(f"{base}<…{telling}…>", width)
    numbers = re.findall(r"(?<![\w:])\d+(?!\w)", arguments)
    return _cut(f"{base}<{', '.join(numbers[:4])}, …>" if numbers else whole, width)


def _telling(arguments: str, generic: bool) -> str:
    candidates = [m.group() for m in _TELLING.finditer(arguments)] if generic else []
    precise = [candidate for candidate in candidates if not _WRAPPER.match(candidate)]
    if precise or candidates:
        return (precise or candidates)[0]
    if function := _LAMBDA_OF.search(arguments):
        return function[1]
    # `kentry<1, ck_tile::Rmsnorm2dFwd<...>>` is distinguished by its first type that is not one of C++.
    own = re.search(r"\b(?:\w+::)+(\w{4,})", arguments) if generic else None
    return own[1] if own else ""


def _taken_apart(name: str) -> tuple[str, str]:
    """(own name without PyTorch's namespaces, return type and parameters; its template arguments)."""
    own = re.match(r"^(?:void )?([^<(]+)(<?)", name)
    if own is None:
        return name, ""
    rest, depth = (name[own.end() :], 1) if own[2] else ("", 0)
    end = 0
    while depth and end < len(rest):
        depth += (rest[end] == "<") - (rest[end] == ">" and rest[end - 1 : end] != "-")
        end += 1
    return re.sub(r"^(?:at::(?:native::)?|c10::)+", "", own[1].strip()), rest[: end - 1] if depth == 0 and end else rest


def _cut(text: str, width: int) -> str:
    """The middle goes: names begin with what they are and end with the tile or the type."""
    if len(text) <= width:
        return text
    head = (width - 1) * 2 // 3
    return f"{text[:head]}…{text[len(text) - (width - 1 - head) :]}"


def short_names(names: Iterable[str]) -> dict[str, str]:
    """Full name to short name; two kernels never share one."""
    short: dict[str, str] = {}
    taken: dict[str, int] = {}
    for name in dict.fromkeys(names):
        candidate = shorten(name)
        taken[candidate] = taken.get(candidate, 0) + 1
        short[name] = candidate if taken[candidate] == 1 else f"{candidate} ({taken[candidate]})"
    return short
