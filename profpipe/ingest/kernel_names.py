"""Give a kernel name one spelling for all tools.

Tools write the same kernel in five ways: mangled (rocprof, ``ncu``), by EDG's rules (nsys, ncu: ``(int)64``,
``const T1 *``, ``[lambda() (instance 1)]``), by GNU's (Kineto, rocprof: ``64``, ``float const*``, ``{lambda()#1}``),
by LLVM's (``'lambda'()``), and shortened (CSV of ncu from 2025 on: ``at::native::`` becomes ``at::``, ``true`` becomes
``1``, ``cutlass::arch::Sm80`` becomes ``arch::Sm80``). ``normalise`` brings all of them to one spelling:

* GNU's order and spacing (``float const*``, ``>>``), ``(anonymous namespace)``, ``{lambda(int)#1}``, plain numbers for
  integers and bools. Enumerations keep their type: it can be the only difference between two kernels.
* No return type, and no ``::operator()() const`` between lambdas.
* No parameter list behind template arguments, where EDG writes ``T1`` and GNU the type: the arguments identify the
  instance. Behind a plain name it stays (``fmha_cutlassF_...(PyTorchMemEffAttention::...)``).
* One namespace before a name inside template arguments and parameters, as in ncu's CSV. The kernel's name keeps all
  namespaces but PyTorch's ``native``.

Names without template arguments (nsys's short name, ncu's function name) and ncu CSVs without namespaces keep their
spelling.
"""

from __future__ import annotations

import functools
import hashlib
import re
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from profpipe.ingest import bounds

_ANONYMOUS = "(anonymous namespace)"
_INTEGERS = {"int", "bool", "unsigned", "signed", "long", "short", "char", "__int64"}
#: A character of an identifier. Beyond ASCII all are: names in any script stay whole, also with signs that Python
#: counts as no letters, such as vowels of Devanagari.
_LETTER = r"[\w$\x80-\U0010ffff]"
_TOKEN = re.compile(
    r"(?P<space>\s+)|(?P<anonymous>\(anonymous namespace\))"
    rf"|(?P<word>operator\s*(?:\(\)|\[\]|<=>|->\*?|<<=?|>>=?|[-+*/%^&|=!<>]=?|~)|(?:~|(?![0-9]){_LETTER}){_LETTER}*)"
    r"|(?P<number>\d[\w.]*)|(?P<mark>::|&&|->|\.\.\.|.)",
    re.DOTALL,
)
_SUFFIXES = re.compile(r"(?:\.kd| \[clone \.kd\]| \(\.kd\))+$")
#: A C++ name has an identifier with template arguments or a parameter list directly behind it.
_CPP = re.compile(rf"(?:{_LETTER}|[>}}])[<(]|^<unnamed>::|^void ")
_EDG_LOCAL = re.compile(r"\[(lambda\([^\[\]]*\)|unnamed type) \(instance (\d+)\)\]")
_LLVM_LAMBDA = re.compile(r"'lambda(\d*)'(\((?:[^()]|\([^()]*\))*\))")
_NSYS_COPY = re.compile(r"^\[CUDA memcpy ([HDAP])to([HDAP])\]$")
_CALLABLE = re.compile(rf"(?:{_LETTER}|[>}}])$|operator\(\)$")
_TAKES_ARGUMENTS = re.compile(rf"(?:{_LETTER}|\}})$|^operator\(\)$")
_WORD, _NEEDS_SPACE = re.compile(_LETTER), re.compile(rf"(?:{_LETTER}|[>}}*&])$")
_NUMBER_BEGINS, _SUFFIXED = re.compile(r"-?\d|-$"), re.compile(r"^(\d+)[uUlL]+$")
_OPERATOR = re.compile(r"^operator\s+")
_BOOLS = {"true": "1", "false": "0"}
_NAMESPACE = re.compile(rf"(?![0-9$]){_LETTER}+|\(anonymous namespace\)")
_PLACES = {"H": "Host", "D": "Device", "A": "Array", "P": "Peer"}


@functools.lru_cache(maxsize=65536)
def normalise(name: str) -> str:
    """Return the one spelling of ``name``. Text that is no C++ name only loses ``.kd`` and ``[clone .kd]``.

    So does a name that is longer than ``bounds.LONGEST_NAME``.
    """
    text = name.strip()
    # To search a name of 50,000 characters takes a millisecond.
    if text.endswith((".kd", ".kd]", ".kd)")):
        text = _SUFFIXES.sub("", text)
    if text.startswith("_Z"):
        text = demangle(text)
    if len(text) > bounds.LONGEST_NAME:
        return text
    if copy := _NSYS_COPY.match(text):
        # nsys 2022 writes HtoD, 2023 and later Host-to-Device.
        return f"[CUDA memcpy {_PLACES[copy[1]]}-to-{_PLACES[copy[2]]}]"
    if text.startswith("[CUDA ") or not _CPP.search(text):
        return text
    return _Parser(_one_alphabet(text)).name() or text


def _one_alphabet(text: str) -> str:
    """Write anonymous namespaces and lambdas in GNU's spelling."""
    # ncu 2024 and 2025 lose the bracket of an `<unnamed>` that begins a name or an argument.
    text = re.sub(r"(?<![\w<])unnamed>::", f"{_ANONYMOUS}::", text)
    text = text.replace("<unnamed>", _ANONYMOUS).replace("_GLOBAL__N_1::", f"{_ANONYMOUS}::")
    while (changed := _EDG_LOCAL.sub(r"{\1#\2}", text)) != text:
        text = changed
    # LLVM counts '', 0, 1 where GNU counts 1, 2, 3.
    return _LLVM_LAMBDA.sub(lambda m: f"{{lambda{m[2]}#{int(m[1]) + 2 if m[1] else 1}}}", text)


class _Unbalanced(Exception):
    """The brackets of the name do not close: it was cut."""


class _Parser:
    """Read a C++ name by its brackets alone, and write it in the one spelling."""

    def __init__(self, text: str) -> None:
        self.tokens = [(m.lastgroup or "", m[0]) for m in _TOKEN.finditer(text)]
        self.at = 0

    def name(self) -> str:
        """Return the whole name, or "" where it is cut."""
        try:
            written = self._item(closers="", depth=0)
        except (_Unbalanced, RecursionError):
            return ""
        return written if self.at == len(self.tokens) else ""

    def _peek(self) -> str:
        return self.tokens[self.at][1] if self.at < len(self.tokens) else ""

    def _items(self, closer: str, depth: int) -> list[str]:
        """Read the comma-separated items and the ``closer``."""
        items = []
        while True:
            item = self._single(closer) or self._item(closers="," + closer, depth=depth)
            end = self._peek()
            if not end:
                raise _Unbalanced
            self.at += 1
            if item or end == ",":
                items.append(item)
            if end == closer:
                return items

    def _single(self, closer: str) -> str:
        """Read an item that is one number or one word, as most template arguments are; "" for any other."""
        at, tokens = self.at, self.tokens
        if at < len(tokens) and tokens[at][0] == "space":
            at += 1
        if at + 1 >= len(tokens) or tokens[at + 1][1] not in (",", closer):
            return ""
        kind, token = tokens[at]
        if kind not in ("word", "number"):
            return ""
        self.at = at + 1
        return _plain_number(token) if kind == "number" else _plain_word(token)

    def _item(self, closers: str, depth: int) -> str:
        written, tokens = _Item(depth), self.tokens
        while self.at < len(tokens):
            kind, token = tokens[self.at]
            if closers and token in closers:
                break
            self.at += 1
            if not closers and token in (">", ")", "]", "}"):
                # ncu 2025 loses brackets and the text before them.
                raise _Unbalanced
            if kind == "space":
                written.space = True
            elif token == "<" and written.ends_with(_TAKES_ARGUMENTS):
                written.arguments(self._items(">", depth + 1))
            elif token == "(":
                self._parenthesis(written, self._items(")", depth + 1))
            elif token in "{[":
                closer = "}" if token == "{" else "]"
                written.word(token + ", ".join(self._items(closer, depth + 1)) + closer)
            else:
                written.token(kind, token)
        return written.text()

    def _parenthesis(self, written: _Item, inner: list[str]) -> None:
        if not written.ends_with(_CALLABLE):
            written.parenthesised(inner, before_number=bool(_NUMBER_BEGINS.match(self._peek())))
            return
        mark = self.at
        while self._peek().strip() in ("", "const", "&", "&&") and self._peek():
            self.at += 1
        is_scope = self._peek() == "::"
        if not is_scope:
            self.at = mark
        written.parameters(inner, is_scope)


class _Item:
    """One name, type or value: its ``pieces``, and the state that decides the spelling of the next piece."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.pieces: list[str] = []
        self.space = self.templated = False
        #: Where the qualified name begins; the pieces before it are a return type or a cv-qualifier.
        self.start = 0

    def _add(self, piece: str) -> None:
        self.pieces.append(piece)
        self.space = False

    def word(self, piece: str) -> None:
        if not self.pieces or self.pieces[-1] != "::":
            self.start = len(self.pieces)
            self.templated = False
        self._add(piece)

    def token(self, kind: str, token: str) -> None:
        if kind in ("word", "anonymous"):
            self.word(_plain_word(token) if self.depth else _joined_operator(token))
        elif kind == "number":
            self.word(_plain_number(token))
        else:
            self._add(token)

    def ends_with(self, pattern: re.Pattern[str]) -> bool:
        """Return True where ``pattern`` finds the last piece, and no space follows it."""
        return bool(self.pieces) and not self.space and bool(pattern.search(self.pieces[-1]))

    def arguments(self, arguments: list[str]) -> None:
        self._add(f"<{', '.join(arguments)}>")
        self.templated = True

    def parenthesised(self, inner: list[str], before_number: bool) -> None:
        is_integer_cast = before_number and len(inner) == 1 and set(inner[0].split()) <= _INTEGERS
        if not is_integer_cast:
            self._add(("" if not self.space or not self.pieces else " ") + f"({', '.join(inner)})")

    def parameters(self, parameters: list[str], is_scope: bool) -> None:
        """Add a parameter list: of the kernel, or of the function around a local name (``is_scope``)."""
        if is_scope or not self.depth:
            del self.pieces[: self.start]
            self.start = 0
        if self.pieces[-1] == "operator()" and len(self.pieces) > 2 and self.pieces[-3].startswith("{lambda"):
            # The lambda's piece already has the parameters of its operator().
            del self.pieces[-2:]
        elif not self.templated:
            self._add(f"({', '.join(parameters)})")
        self.space = False

    def text(self) -> str:
        pieces = _east_const(self.pieces) if self.depth else self.pieces
        if len(pieces) == 1:
            # Most arguments are one number or one word.
            return "" if pieces == ["void"] and not self.depth else pieces[0].strip()
        if not self.depth and pieces[:1] == ["void"]:
            pieces = pieces[1:]
        written = ""
        for piece in _drop_namespaces(pieces, keep_all=not self.depth):
            spaced = piece == "const" or (_WORD.match(piece) and _NEEDS_SPACE.search(written))
            written += f" {piece}" if spaced and written else piece
        return written.strip()


def _joined_operator(word: str) -> str:
    return _OPERATOR.sub("operator", word) if word.startswith("operator") else word


def _plain_word(word: str) -> str:
    """Write a word inside brackets: bools are numbers there."""
    return _BOOLS.get(word) or _joined_operator(word)


def _plain_number(number: str) -> str:
    return number if number.isdigit() else _SUFFIXED.sub(r"\1", number)


def _east_const(pieces: list[str]) -> list[str]:
    """Write ``const float *`` as ``float const*``."""
    if len(pieces) < 2 or pieces[0] != "const":
        return pieces
    end = next((i for i, piece in enumerate(pieces) if piece in ("*", "&", "&&")), len(pieces))
    return [*pieces[1:end], "const", *pieces[end:]]


def _drop_namespaces(pieces: Sequence[str], keep_all: bool) -> Sequence[str]:
    """Drop PyTorch's ``native``, and all but one namespace before a name unless ``keep_all``."""
    if "::" not in pieces:
        return pieces
    kept: list[str] = []
    i = 0
    while i < len(pieces):
        spaces = []
        while i + 1 < len(pieces) and pieces[i + 1] == "::" and _NAMESPACE.fullmatch(pieces[i]):
            spaces.append(pieces[i])
            i += 2
        if spaces[:2] == ["at", "native"]:
            del spaces[1]
        if not keep_all:
            named = [k for k, space in enumerate(spaces) if space != _ANONYMOUS]
            spaces = spaces[named[-1] :] if named else spaces
        kept += [part for space in spaces for part in (space, "::")]
        if i < len(pieces):
            kept.append(pieces[i])
            i += 1
            while i + 1 < len(pieces) and pieces[i] == "::" and kept[-1] != "::":
                # Members and lambdas follow the entity, never namespaces.
                kept += pieces[i : i + 2]
                i += 2
    return kept


# --- demangling ------------------------------------------------------------------------------------------------------

#: A substitution or a template parameter.
_REFERENCE = re.compile(r"[ST][0-9A-Z]*_")
#: Characters of a demangled name.
_LONGEST = 1 << 20
#: Limits of the process that demangles a name by itself. Composable Kernel's longest names take 0.2 s.
_CPU_S, _MEMORY, _TIMEOUT_S = 2, 1 << 29, 20.0
#: CPU time of all such processes. Beyond it, names are shortened.
MOST_S = 3.0
#: The length of an identifier, and the name of an anonymous namespace.
_LENGTH, _ANONYMOUS_NAME = re.compile(r"[1-9]\d{0,3}"), re.compile(r"_GLOBAL__N_\d*")


def demangle(name: str) -> str:
    """Demangle an Itanium-mangled ``name`` in bounded time and memory; return ``name`` where its grammar is unknown.

    cxxfilt (the system's libstdc++) comes first: only it knows local names, such as PyTorch's lambdas.
    itanium-demangler 1.1 reads Composable Kernel's longest names, and serves systems without libstdc++.

    A mangled name of 250 bytes may stand for gigabytes. Where that cannot be excluded, another process demangles it
    with little time and memory, and a name that takes more is shortened (``shorten``).
    """
    return _demangled(name) if _longest_demangled(name) <= _LONGEST else _demangled_apart(name)


def shorten(name: str) -> str:
    """Return the qualified name of the function template of a mangled ``name``, with a hash in place of its arguments.

    ``ck::device::kernel_gemm<…1f0c93ab>``. Names with substitutions before the first arguments stay mangled, and those
    of no template.
    """
    is_nested = name.startswith("_ZN")
    words: list[str] = []
    at = 3 if is_nested else 2
    # Behind a name without a namespace come the types of the parameters.
    while (is_nested or not words) and (length := _LENGTH.match(name, at)):
        at = length.end() + int(length[0])
        words.append(name[length.end() : at])
    if not words or name[at : at + 1] != "I" or not all(map(str.isidentifier, words)):
        return name
    shown = "::".join(_ANONYMOUS if _ANONYMOUS_NAME.fullmatch(word) else word for word in words)
    return f"{shown}<…{hashlib.sha256(name.encode()).hexdigest()[:8]}>"


@functools.lru_cache(maxsize=65536)
def _demangled(name: str) -> str:
    # Up to GCC 12 libstdc++ does not know __bf16 (DF16b), and neither knows _Float16 (DF16_). A decimal type replaces
    # them: it is builtin too, so the numbers of substitutions stay right, and no GPU has it.
    spelt = name.replace("DF16b", "Dd").replace("DF16_", "De")
    text = _demangle_with_libstdcpp(spelt) or _demangle_with_python(spelt)
    if text is None:
        return name
    text = re.sub(r"\b_?[Dd]ecimal64\b", "__bf16", text)
    return re.sub(r"\b_?[Dd]ecimal128\b", "_Float16", text)


def _longest_demangled(name: str) -> int:
    """Return a bound of the characters of the demangled ``name``.

    A substitution is at most as long as all that stands before its first use, so a new one can double the name.
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


def _demangle_with_libstdcpp(name: str) -> str | None:
    try:
        import cxxfilt

        return str(cxxfilt.demangle(name))
    except (ImportError, UnicodeError):
        return None
    except cxxfilt.Error:
        return None


def _demangle_with_python(name: str) -> str | None:
    try:
        import itanium_demangler

        parsed = itanium_demangler.parse(name)
    # Unknown grammar raises any error of its tables.
    except (ImportError, NotImplementedError, LookupError, TypeError, ValueError, AttributeError, RecursionError):
        return None
    return None if parsed is None else str(parsed)


_spent_s = 0.0


@functools.cache
def _demangled_apart(name: str) -> str:
    """Return the name that another process gives, shortened where this takes too much."""
    global _spent_s
    if _spent_s > MOST_S:
        return shorten(name)
    isolated = ["-P"] if sys.version_info >= (3, 11) else []
    command = [sys.executable, *isolated, "-m", __name__]
    root = Path(__file__).resolve().parents[2]
    try:
        ended = subprocess.run(
            command, input=name.encode(), capture_output=True, timeout=_TIMEOUT_S, cwd=root, start_new_session=True
        )
    except (OSError, subprocess.TimeoutExpired):
        ended = None
    if ended is None or ended.returncode:
        _spent_s += _CPU_S
        return shorten(name)
    # The process writes its CPU time last. A warning may stand before it.
    _spent_s += float(ended.stderr.split()[-1])
    text = ended.stdout.decode("utf-8", "replace")
    return text if text != name and len(text) <= _LONGEST else shorten(name)


def main() -> None:
    """Demangle the name on the standard input, and write the CPU time that this takes to the standard error."""
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_S, _CPU_S))
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    sys.stdout.write(_demangled(sys.stdin.read()))
    sys.stderr.write(f"\n{time.process_time()}")


if __name__ == "__main__":
    main()
