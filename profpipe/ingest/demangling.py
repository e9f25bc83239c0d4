"""Demangle names of kernels (Itanium's C++ ABI) in bounded time and memory.

A mangled name of 250 bytes may stand for gigabytes. Where that cannot be excluded, another process demangles it, with
little time and memory.
"""

from __future__ import annotations

import functools
import hashlib
import re
import resource
import subprocess
import sys
import time
from pathlib import Path

from profpipe.results import budget

#: A substitution or a template parameter.
_REFERENCE = re.compile(r"[ST][0-9A-Z]*_")
#: Characters of a demangled name.
_LONGEST = 1 << 20
#: Limits of the process that demangles a name by itself. Composable Kernel's longest names take 0.2 s.
_CPU_S, _MEMORY = 2, 1 << 29
_TIMEOUT_S = 20.0
#: CPU time of all these processes of a file. Beyond it, its names are shortened.
MOST_S = 3.0
#: The length of an identifier, and the name of an anonymous namespace.
_LENGTH, _ANONYMOUS = re.compile(r"[1-9]\d{0,3}"), re.compile(r"_GLOBAL__N_\d*")


def demangle(name: str) -> str:
    """Demangle an Itanium-mangled ``name``; return ``name`` where no demangler knows its grammar.

    cxxfilt (the system's libstdc++) comes first: only it knows local names, such as PyTorch's lambdas.
    itanium-demangler 1.1 reads Composable Kernel's longest names, and serves systems without libstdc++.

    A name whose substitutions double it again and again, for which a demangler would take all memory, is shortened. So
    are long names that take too much time. See ``shorten``.
    """
    if _longest_demangled(name) <= _LONGEST:
        return _demangled(name)
    # A name that was not demangled may be in a file with more time left.
    if name not in _by_processes and (text := _demangled_by_process(name)) != name:
        _by_processes[name] = text
    return _by_processes.get(name) or shorten(name)


def shorten(name: str) -> str:
    """Return the qualified name of the function template of a mangled ``name``, with a hash in place of its arguments.

    ``ck::device::kernel_gemm<…1f0c93ab>``. Names with substitutions before the first arguments stay mangled, and those
    of no template.
    """
    is_nested = name.startswith("_ZN")
    words: list[str] = []
    at = 3 if is_nested else 2
    # Behind a name without a namespace come the types of the parameters.
    while (is_nested or not words) and (found := _LENGTH.match(name, at)):
        at = found.end() + int(found[0])
        words.append(name[found.end() : at])
    if not words or name[at : at + 1] != "I" or not all(map(str.isidentifier, words)):
        return name
    shown = "::".join("(anonymous namespace)" if _ANONYMOUS.fullmatch(word) else word for word in words)
    return f"{shown}<…{hashlib.sha256(name.encode()).hexdigest()[:8]}>"


_by_processes: dict[str, str] = {}


@functools.lru_cache(maxsize=65536)
def _demangled(name: str) -> str:
    # Up to GCC 12 libstdc++ does not know __bf16 (DF16b), and neither knows _Float16 (DF16_). A decimal type replaces
    # them: it is builtin too, so the numbers of substitutions stay right, and no GPU has it.
    spelt = name.replace("DF16b", "Dd").replace("DF16_", "De")
    text = _by_libstdcpp(spelt) or _by_python(spelt)
    if text is None:
        return name
    text = re.sub(r"\b_?[Dd]ecimal64\b", "__bf16", text)
    return re.sub(r"\b_?[Dd]ecimal128\b", "_Float16", text)


def _longest_demangled(name: str) -> int:
    """Return a bound of the characters of the demangled ``name``.

    A substitution is at most as long as all that stands before its first use, so each new one can double the name.
    """
    size, at = 0, 0
    first: dict[str, int] = {}
    for reference in _REFERENCE.finditer(name):
        size += reference.start() - at
        at = reference.end()
        size += first.setdefault(reference.group(), size)
        if size > _LONGEST:
            return size
    return size + len(name) - at


def _by_libstdcpp(name: str) -> str | None:
    try:
        import cxxfilt
    except ImportError:
        return None
    try:
        return str(cxxfilt.demangle(name))
    except (cxxfilt.Error, UnicodeError):
        return None


def _by_python(name: str) -> str | None:
    try:
        import itanium_demangler
    except ImportError:
        return None
    try:
        parsed = itanium_demangler.parse(name)
        return None if parsed is None else str(parsed)
    # Unknown grammar raises any error of its tables.
    except (NotImplementedError, LookupError, TypeError, ValueError, AttributeError, RecursionError):
        return None


#: The file that is being read, and what it has spent of ``MOST_S``.
_spent: tuple[object, float] = (None, 0.0)


def _demangled_by_process(name: str) -> str:
    global _spent
    file = budget.reading()
    spent_s = _spent[1] if file is not None and _spent[0] is file else 0.0
    if spent_s > MOST_S:
        return name
    text, cpu_s = _demangled_apart(name)
    _spent = (file, spent_s + cpu_s)
    return text


def _demangled_apart(name: str) -> tuple[str, float]:
    """Return the name that another process gives, and the CPU time of that process."""
    command = (
        [sys.executable, "-P", "-m", __name__] if sys.version_info >= (3, 11) else [sys.executable, "-m", __name__]
    )
    root = Path(__file__).resolve().parents[2]
    try:
        ended = subprocess.run(
            command, input=name.encode(), capture_output=True, timeout=_TIMEOUT_S, cwd=root, start_new_session=True
        )
    except (OSError, subprocess.TimeoutExpired):
        return name, _CPU_S
    if ended.returncode:
        return name, _CPU_S
    text = ended.stdout.decode("utf-8", "replace") if len(ended.stdout) <= _LONGEST else name
    # The process writes its CPU time last. A warning may stand before it.
    return text, float(ended.stderr.split()[-1])


def main() -> None:
    """Demangle the name on the standard input, and write the CPU time that this takes to the standard error."""
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_S, _CPU_S))
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    sys.stdout.write(_demangled(sys.stdin.read()))
    sys.stderr.write(f"\n{time.process_time()}")


if __name__ == "__main__":
    main()
