"""Recognise secrets, and replace them in texts. docs/security.md states the rules for users.

This module is loaded by every command and in the process of a workload, so it imports the standard library only.
"""

from __future__ import annotations

import base64
import functools
import hmac
import json
import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, quote_plus, unquote

#: A shorter text, such as 1, may occur anywhere and is not searched for.
SHORTEST: Final = 6
#: From this length on, the value of a variable is a secret although its name does not say so.
_LONG: Final = 20
#: Longer numbers may be keys. Shorter ones are sizes: MAX_TOKENS=4096.
_MOST_DIGITS: Final = 7
_HIDDEN: Final = "***"

#: PASS, PWD and PAT count as words or at the end of a word, but not COMPASS, BYPASS, PWD itself, PATH, PATTERN, AUTHOR.
_NAME: Final = re.compile(
    r"""
    TOKEN(?!I[SZ]) | SECRET | KEY(?!BOARD|WORD|FRAME|NOTE) | CREDENTIAL | PASS(W|PHRASE|CODE)
    | (?<!BY)(?<!COM) PASS (?![A-Z])
    | (?<=.)(?<!^OLD) PWD (?![A-Z])
    | AUTH (?!OR(?!I[SZ]))
    | (?<![A-Z]) PAT (?![A-Z])
    """,
    re.IGNORECASE | re.VERBOSE,
)
_PASSWORD: Final = re.compile(r"PASS|PWD|SECRET", re.IGNORECASE)
#: The last words of an option or a parameter whose value is a secret: not ``tokenizer`` or ``num_key_value_heads``.
TELLING: Final = (
    r"(?:token|secret|password|passwd|passphrase|passcode|credentials?|(?:api|access|secret|private|auth)[-_]?key)"
)
_PARAMETER: Final = re.compile(rf"(?:[\w.-]*[-_.])?{TELLING}", re.IGNORECASE)
#: Any other key or PAT. Whether it is a secret, the value says: ``wandb_key`` is one, ``caption_key: text`` is none.
_KEY: Final = re.compile(
    r"(?:[\w.-]*[-_.])?(?!(?:sort|order|group|partition|primary|foreign|public|cache)[-_.])[A-Za-z0-9]+[-_.](?:key|pat)",
    re.IGNORECASE,
)
#: Names of columns and layers, which are words of letters and small numbers, and patterns of names.
_WORDS: Final = re.compile(r"[A-Za-z]{1,15}(?:[-_. :;/](?:[A-Za-z]{1,15}|\d{1,3}))*|.*[][*?(){}|^$\\].*", re.DOTALL)
_NUMBER: Final = re.compile(r"[-+]?\d*\.?\d*(?:[eE][-+]?\d+)?|true|false|yes|no|on|off|null|none", re.IGNORECASE)

#: Texts that are secrets by their form, with the documentation of who issues them: Hugging Face, GitHub, OpenAI and
#: others, AWS, Slack, GitLab, npm, PyPI, JSON web tokens (RFC 7519).
_TOKEN: Final = (
    r"(?<![A-Za-z0-9])(?:hf_[A-Za-z0-9]{20,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|sk-[\w-]{20,}"
    r"|(?:AKIA|ASIA)[0-9A-Z]{16}|xox[a-z]-[A-Za-z0-9-]{10,}|glpat-[\w-]{16,}|npm_[A-Za-z0-9]{30,}"
    r"|pypi-[\w-]{16,}|eyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?)"
)
_KEY_LINE: Final = "[A-Z ]*PRIVATE KEY(?: BLOCK)?-----"
_PRIVATE_KEY: Final = rf"-----BEGIN {_KEY_LINE}[\s\S]*?(?:-----END {_KEY_LINE}|\Z)"
_KEY_LINES: Final = re.compile(rf"-----(?:BEGIN|END) {_KEY_LINE}")
#: The password of a URL: what stands between the user and the host.
_URL_PASSWORD: Final = r"(?<=://)(?P<user>[^\s/:@'\"]*):(?P<password>(?!\$\{|\*\*\*@)[^\s/@'\"]+)(?=@)"
#: Without what may stand before such a word: looking for that would take quadratic time in a long line.
_BESIDE: Final = rf"(?P<key>{TELLING}[\"']?\s*[:=]\s*[\"']?|\b(?:Bearer|Basic)\s+)(?P<value>[^\s\"',;&]{{12,}})"
_FORM: Final = re.compile(f"{_TOKEN}|{_PRIVATE_KEY}")
_URL: Final = re.compile(_URL_PASSWORD)
_KEYED: Final = re.compile(_BESIDE, re.IGNORECASE)
_AUTHORIZATION: Final = re.compile(r"Authorization[\"']?\s*[:=]\s*[\"']?\Z", re.IGNORECASE)
#: ``NAME=`` in a word of a command line, ``--name`` before the next word of a line in it, and the end of an item of a
#: list: ``--export=ALL,A=1,B=2``.
_ASSIGNED: Final = re.compile(r"(?<![\w.$-])(-+)?([A-Za-z_][\w.-]*)(?:=|(?(1)[ \t]+(?![-\s])|=))")
#: Between the name and the value of one of these.
BEFORE_VALUE: Final = "[= \t][\"']?"
_NEXT_ITEM: Final = re.compile(r",(?=[A-Za-z_]\w*=)")
_OPTION_NAME: Final = re.compile(r"(?<!\w)(\w+)=")
#: A word with more of them is hidden as a whole.
_MOST_ASSIGNED: Final = 100
_SHELL_WORD: Final = re.compile(r"(?:\"(?:[^\"\\]|\\.)*\"|'[^']*'|\\.|[^\s;&|])*", re.DOTALL)
#: The option of a shell before a line of commands: ``bash -c``, ``sh -lc``.
_LINE_OPTION: Final = re.compile(r"-[a-z]*c")
#: Bits for each character. English words have less than 3; random letters and digits have more.
_LEAST_ENTROPY: Final = 3.0


def is_secret_name(name: str) -> bool:
    """Return True if the environment variable of that name may hold a secret."""
    return bool(_NAME.search(name))


def is_secret_parameter(name: str, value: object) -> bool:
    """Return True if a parameter of that name holds a secret; numbers do not."""
    text = str(value)
    if not text or _NUMBER.fullmatch(text):
        return False
    is_other_key = bool(_KEY.fullmatch(name)) and not _WORDS.fullmatch(text) and not _is_path(text)
    return bool(_PARAMETER.fullmatch(name)) or is_other_key


def is_secret_option(word: str, value: str) -> bool:
    """Return True for an option with a secret ``value``: ``--api-key``, but not ``--tokenizer``."""
    option = word.lstrip("-")
    return word.startswith("-") and (bool(_PARAMETER.fullmatch(option)) or is_secret_parameter(option, value))


def is_line_option(word: str) -> bool:
    """Return True for the option of a shell that takes a line of commands: ``-c`` or ``-lc``."""
    return bool(_LINE_OPTION.fullmatch(word))


def assigned_secrets(word: str, before: str = "") -> dict[str, str]:
    """Return the secrets in ``NAME=value`` of a word, longest first, and the name of each.

    Such words are ``--api-key=...`` and ``--export=ALL,HF_TOKEN=...``.

    In a line of a shell, such as ``export DB_PASSWORD=... && ./run --api-key ...``, a value ends with its word. Behind
    an option such as ``-c``, which is the word ``before``, any word is such a line.
    """
    is_line = is_line_option(before)
    # Whether a value is a path, the file system has to say. A long word may repeat one value ten thousand times.
    is_secret = functools.cache(_is_assigned_secret)
    found: dict[str, str] = {}
    for item in _NEXT_ITEM.split(word):
        space = re.search(r"\s", item)
        at, first_space = 0, space.start() if space else len(item)
        while name := _ASSIGNED.search(item, at):
            at = name.end()
            if not any((_is_secret_variable(name[2]), _PARAMETER.fullmatch(name[2]), _KEY.fullmatch(name[2]))):
                continue
            end = _SHELL_WORD.match(item, at)
            values = [item[at:]] if at <= first_space and not is_line else []
            if end is not None:
                values += [end[0].strip("\"'")] if space or is_line else []
                at = max(at, end.end())
            found |= {value: name[2] for value in values if is_secret(name[2], value)}
    return dict(sorted(found.items(), key=lambda item: len(item[0]), reverse=True))


def _is_secret_variable(name: str) -> bool:
    """Return True for a secret name in capital letters: in other names KEY is that of a sort or a table."""
    return name.isupper() and is_secret_name(name)


def _is_assigned_secret(name: str, value: str) -> bool:
    # A PIN has four digits or more; NUM_PASS=1 is a count.
    is_count = _NUMBER.fullmatch(value) and sum(map(str.isdigit, value)) < 4
    if is_count or value.startswith(("$", _HIDDEN, "...")):
        return False
    is_variable = _is_secret_variable(name) and bool(secrets_in_variable(name, value))
    return is_variable or is_secret_parameter(name, value)


def hide_assigned(word: str, hidden: str = _HIDDEN, before: str = "") -> str:
    """Return ``word`` with ``hidden`` in place of each of its ``assigned_secrets``."""
    found = assigned_secrets(word, before)
    if len(found) > _MOST_ASSIGNED:
        return hidden
    for value in found:
        word = re.sub(rf"({BEFORE_VALUE}){re.escape(value)}", lambda found: f"{found[1]}{hidden}", word)
    return word


def option_secrets(word: str) -> list[str]:
    """Return the values of secret names, in any case of letters, in an option of sbatch, srun or a launcher.

    Such options set variables: ``--export=ALL,wandb_key=...``. A value ends with its item of the list.
    """
    return list(filter(None, (item[end:] for item in _NEXT_ITEM.split(word) if (end := _secret_begin(item)))))


def hide_option(word: str) -> str:
    """Return ``word`` with ``...`` in place of each of its ``option_secrets``."""
    return ",".join(f"{item[:end]}..." if (end := _secret_begin(item)) else item for item in _NEXT_ITEM.split(word))


def _secret_begin(item: str) -> int | None:
    """Return where the value of the first secret name in ``item`` begins."""
    return next((name.end() for name in _OPTION_NAME.finditer(item) if is_secret_name(name[1])), None)


def has_secret_form(text: str) -> bool:
    """Return True if a part of ``text`` looks like a secret, whatever its name."""
    return mask_forms(text) != text


def secrets_in_variable(name: str, value: str) -> list[str]:
    """Return the secrets in an environment variable: its value, and the items of a list. Empty where it holds none."""
    items = [item.strip() for item in re.split("[,;]", value)] if re.search("[,;]", value) else []
    if is_secret_name(name):
        is_size = _NUMBER.fullmatch(value) and len(value) <= _MOST_DIGITS and not _PASSWORD.search(name)
        found = [] if is_size or _is_path(value) else [value, *items]
    elif _is_long_text(value) and not (items and not any(map(_is_long_text, items))):
        found = [value, *filter(_is_long_text, items)]
    else:
        found = [value] if has_secret_form(value) else []
    return list(dict.fromkeys(filter(None, [*found, *(_passwords(value) if found else ())])))


def secrets_of_placeholders(placeholders: Iterable[tuple[str, str | None]], env: Mapping[str, str]) -> dict[str, str]:
    """Return the secrets that ``${NAME:-default}`` stands for, and ``${NAME}`` for each; from (name, default).

    The default is a secret too where the name of the variable says so.
    """
    found: dict[str, str] = {}
    for name, default in placeholders:
        value = env.get(name) or (default if is_secret_name(name) else "") or ""
        found |= dict.fromkeys(secrets_in_variable(name, value), f"${{{name}}}")
    return found


def _is_long_text(text: str) -> bool:
    return len(text) >= _LONG and not _NUMBER.fullmatch(text) and not _is_path(text)


def _is_path(text: str) -> bool:
    """Return True for a path, or several as in PATH, that exists or begins with a folder that does."""
    return all(map(_is_one_path, text.split(os.pathsep)))


def _is_one_path(text: str) -> bool:
    try:
        path = Path(text).expanduser()
        place = Path(*path.parts[: 2 if path.is_absolute() else 1])
        return not text or (place.exists() if path.is_absolute() or text.startswith(".") else path.exists())
    except (OSError, ValueError, RuntimeError):
        return False


def _passwords(text: str) -> list[str]:
    """Return the passwords of the URLs in ``text``, as they are and decoded."""
    found = [match["password"] for match in _URL.finditer(text)]
    return [each for password in found for each in (password, unquote(password)) if len(each) >= SHORTEST]


def digest(value: object, salt: bytes) -> str:
    """Return the name of a secret value in the results: equal for equal values below one results folder."""
    return f"secret-{hmac.digest(salt, str(value).encode('utf-8', 'surrogatepass'), 'sha256').hex()[:12]}"


# --- texts -----------------------------------------------------------------------------------------------------------


def mask_forms(text: str) -> str:
    """Return ``text`` without what looks like a secret by its form."""
    if len(text) < SHORTEST:
        return text
    if cut := _cut_key(text):
        text = _HIDDEN + text[len(cut) :]
    text = _FORM.sub(_HIDDEN, text)
    text = _URL.sub(lambda found: f"{found['user']}:{_HIDDEN}", text)
    return _KEYED.sub(lambda found: f"{found['key']}{_HIDDEN}" if _is_keyed(found) else found[0], text)


def _cut_key(text: str) -> str:
    """Return what stands before the end of a private key whose begin is missing, with this end; empty for none."""
    first = _KEY_LINES.search(text)
    return text[: first.end()] if first and first[0].startswith("-----END") else ""


def _is_keyed(found: re.Match[str]) -> bool:
    """Return True for a secret behind its name. "Basic" is a word of English too, unless user:password follows it."""
    value = found["value"]
    if not _is_random(value) or not found["key"].lower().startswith("basic"):
        return _is_random(value)
    if _AUTHORIZATION.search(found.string, max(0, found.start() - 30), found.start()):
        return True
    try:
        return ":" in base64.b64decode(value + "=" * (-len(value) % 4), validate=True).decode()
    except ValueError:
        return False


def is_searchable(secret: str, name: str = "") -> bool:
    """Return True for a secret that is no word that may occur anywhere: a long or a random one, or a password.

    ``EOS_TOKEN=</s>`` and ``SORT_KEY=seqlen`` are none, and ``DB_PASSWORD=correct-horse`` is one.
    """
    is_password = bool(_PARAMETER.fullmatch(name) and _PASSWORD.search(name)) and len(secret) >= SHORTEST
    return is_password or len(secret) >= 16 or _is_random(secret)


def _is_random(text: str) -> bool:
    """Return True for letters mixed with digits that repeat little."""
    counts, length = Counter(text), len(text)
    entropy = -sum(n / length * math.log2(n / length) for n in counts.values())
    is_mixed = any(c.isdigit() for c in text) and any(c.isalpha() for c in text) and length >= 8
    return is_mixed and entropy >= _LEAST_ENTROPY and not text.startswith(("${", "secret-"))


def secret_parts(text: str) -> list[str]:
    """Return the parts of ``text`` that look like secrets by their form."""
    found = [_cut_key(text), *(match[0] for match in _FORM.finditer(text))]
    found += [match["password"] for match in _URL.finditer(text)]
    found += [match["value"] for match in _KEYED.finditer(text) if _is_keyed(match)]
    return list(filter(None, dict.fromkeys(found)))


class Masker:
    """Replaces known secrets, in any usual spelling, and what looks like a secret by its form."""

    def __init__(self, secrets: Mapping[str, str]) -> None:
        self._public = {spelling: public for value, public in secrets.items() for spelling in spellings(value)}
        longest_first = sorted(self._public, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    @property
    def spellings(self) -> Iterable[str]:
        """The texts that are searched for."""
        return self._public.keys()

    def mask(self, text: str) -> str:
        return mask_forms(self.mask_known(text))

    def mask_known(self, text: str) -> str:
        """Return ``text`` without the known secrets."""
        return text if self._pattern is None else self._pattern.sub(lambda found: self._public[found[0]], text)

    def mask_all(self, node: Any) -> Any:
        """Return a JSON document with every text masked."""
        if isinstance(node, str):
            return self.mask(node)
        if isinstance(node, Mapping):
            return {self.mask_all(key): self.mask_all(value) for key, value in node.items()}
        return [self.mask_all(item) for item in node] if isinstance(node, (list, tuple)) else node


def masker(secrets: Mapping[str, str]) -> Masker:
    """Return the masker of ``secrets``: by value, the text that replaces it."""
    return _masker(tuple(secrets.items()))


@functools.lru_cache(maxsize=16)
def _masker(secrets: tuple[tuple[str, str], ...]) -> Masker:
    return Masker(dict(secrets))


def spellings(value: str) -> Iterator[str]:
    """Yield ``value`` as programs write it: as it is, escaped, encoded for a URL, and each of several lines alone."""
    found = [value, *(line.strip() for line in value.splitlines())] if "\n" in value else [value]
    for text in found:
        yield from (each for each in dict.fromkeys(_spellings(text)) if len(each) >= SHORTEST)


def _spellings(text: str) -> Iterator[str]:
    yield text
    yield json.dumps(text)[1:-1]
    yield json.dumps(text, ensure_ascii=False)[1:-1]
    yield repr(text)[1:-1]
    encoded = text.encode("utf-8", "surrogatepass")
    yield from (quote(encoded, safe=""), quote(encoded), quote_plus(encoded))
    # As in the name of a case.
    yield "".join(c if c.isascii() and c.isprintable() and c not in '%,=/@ \\"' else quote(c, safe="") for c in text)


# --- the terminal ----------------------------------------------------------------------------------------------------

#: The secrets of this process, by value, for whatever it prints.
_known: dict[str, str] = {}


def remember(secrets: Mapping[str, str]) -> None:
    """Mask ``secrets`` in everything that this process prints from now on."""
    _known.update(secrets)


def forget() -> None:
    """Mask none of the secrets that were remembered."""
    _known.clear()


def mask_printed(text: str) -> str:
    return masker(_known).mask(text)


def secrets_of_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the secrets by value in variables that look secret by name or form, and ``${NAME}`` for each."""
    found: dict[str, str] = {}
    for name, value in environment.items():
        if is_secret_name(name) or has_secret_form(value):
            # A word such as AUTH_MODE=disabled may occur anywhere.
            texts = filter(is_searchable, secrets_in_variable(name, value))
            found.update(dict.fromkeys(texts, f"${{{name}}}"))
    return found
