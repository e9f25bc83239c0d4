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
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, quote_plus, unquote

#: Where a text is replaced, and by what.
_Span = tuple[int, int, str]
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

#: Texts that are secrets by their form, with the documentation of who issues them: what they begin with, and the rest.
_TOKENS: Final = {
    # Hugging Face, GitHub, npm, Groq, Replicate, Pinecone
    r"hf_|api_org_|gh[pousr]_|npm_|gsk_|r8_|pcsk_": r"[A-Za-z0-9]{20,}",
    # GitHub, Docker, Weights & Biases, OpenAI and Anthropic, NGC, Google, Perplexity, xAI
    r"github_pat_|dckr_[po]at_|wandb_v\d_|sk-|nvapi-|AIza|GOCSPX-|ya29\.|1//0|pplx-|xai-": r"[\w-]{20,}",
    # AWS
    r"A(?:KIA|SIA|BIA|CCA)": r"[0-9A-Z]{16}",
    # Slack, AWS
    r"xox[a-z][.-]|xapp-|xwfp-|hooks\.slack\.com/[a-z]+/|ABSK[A-Za-z0-9+/]{30,}": r"[\w./-]{10,}",
    # GitLab, PyPI
    r"gl(?:pat|dt|rt|rtr|cbt|ptt|ft|imt|agent|oas|soat|ffct|wt)-|GR1348941|pypi-": r"[\w.-]{16,}",
    # JSON web tokens (RFC 7519)
    r"eyJ": r"[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)*",
}  # fmt: skip
_TOKEN: Final = re.compile(f"(?<![A-Za-z0-9])(?:{'|'.join(f'(?:{begin}){rest}' for begin, rest in _TOKENS.items())})")
#: A pattern that begins with a letter is searched for several times as fast as one that begins with a choice.
_TOKEN_BEGINS: Final = re.compile("|".join(_TOKENS))
_KEY_LINE: Final = "[A-Z ]*PRIVATE KEY(?: BLOCK)?-----"
_PRIVATE_KEY: Final = re.compile(rf"-----BEGIN {_KEY_LINE}[\s\S]*?(?:-----END {_KEY_LINE}|\Z)")
_KEY_LINES: Final = re.compile(rf"-----(?:BEGIN|END) {_KEY_LINE}")
#: The password of a URL: what stands between the user and the host, up to the last @. Behind a colon and a slash it is
#: no port. A quote before one of these ends the URL.
_IN_URL: Final = r"[^\s@/'\"]|['\"](?![\s,:\])}])"
_URL: Final = re.compile(
    rf"(?<=://)[^\s/:@'\"]*:(?!\$\{{|\*\*\*@|\d*[/?#])((?:{_IN_URL}|@)+|(?:{_IN_URL}|/(?!/))+)(?=@(?!sha\d+:))"
)
#: Behind the password of a data source without ``://``, and such a data source up to it.
_HOST: Final = re.compile(r"@(?:(tcp|unix)\(|[\w.-]+(?::\d+)?/\w)")
_ACCOUNT: Final = re.compile(r"(?<![^\s\"'`=,;(<>|])[\w.+-]{1,64}:(?!//|\$\{|\*\*\*)([^\s\"'`=,;(<>|]+)\Z")
_ACCOUNT_NAME: Final = re.compile(r"u|(?:proxy[-_])?user|[\w.-]*auth", re.IGNORECASE)
#: The cookies of a header of HTTP.
_COOKIES: Final = re.compile(r"[Cc]ookie['\"]?[:,][ '\"]{0,3}(?=[\w.-]{1,64}=)(?!\w+=\*{3})([^\n\r'\"\0]{8,4000})")
#: The password of mysql, sshpass, redis-cli, clients of Oracle, and in XML. Other programs have other options that
#: begin with -p: there the value decides.
_P_OPTION: Final = re.compile(
    r"(?:redis-cli(?=[\s'\",])[^\n|;&]{0,200}?[\s'\",](?:-a|--pass)[\s'\",=]+"
    r"|<(?:\w{1,20}:)?[Pp]assw(?:or)?d>(?!<)"
    r"|(?:(?<!\w)(?:sqlplus|sqlldr|expdp|impdp|rman)(?=[\s'\",])[^\n|;&]{0,200}?[\s'\",]|jdbc:oracle:\w{1,9}:)[\w$#]{1,30}/(?!/)"
    r"|m(?:ysql|ariadb)[\w-]{0,20}(?=[\s'\",])[^\n|;&]{0,200}?[\s'\",]-p|sshpass[\s'\",]+-p[\s'\",]*"
    r"|-p(?<![^\s'\"]-p)(?=\w{0,64}[A-Z])(?=\w{0,64}[a-z])(?=\w{0,64}\d)(?=[\w!@#$%^*+.-]{8,64}(?:[\s'\"]|\Z)))"
    r"(?!\$\{)([^\s'\",;&]{3,}?)(?=</|[\s'\",;&]|\Z)"
)
#: Without what may stand before such a word: looking for that would take quadratic time in a long line.
_BESIDE: Final = (
    rf"(?:{TELLING}[\"']?(?:\s*[:=][=>]?\s*(?:[|>][-+]?\s+)?|[\s,]\s*)|(?:bearer|basic)\s+"
    r"|authorization[\"']?\s*[:=,]\s*(?:b?[\"'])?(?:[a-z][\w-]*\s+)?"
    r"|(?:pwd|account-?key|amz-signature|sig(?<=[?&]sig))=(?![/~])"
    r"|-(?:u|-(?:proxy-)?user|-[a-z-]{0,20}auth)[\s'\",=]+[^\s:'\"=]{1,64}:)(?:b?[\"'])?"
)
_VALUE: Final = r"[^\s\"',;&\0]"
#: In lower case. A call in a line of code is no value.
_KEYED: Final = re.compile(rf"{_BESIDE}(?![a-z_][\w.]{{0,64}}\()(?=({_VALUE}{{8,64}}))")
_KEY_BEGINS: Final = re.compile("token|secret|pass|cred|a(?:pi|cc|mz|uth)|private|bearer|basic|-u|--|pwd=|sig=")
_REST: Final = re.compile(f"{_VALUE}*")
#: A shorter one counts behind the name of a password only.
_LEAST_VALUE: Final = 12
_IN_OPTION: Final = re.compile(r"--[\w.-]*\Z")
#: How terminals, JSON, Python, shells and URLs write other characters, and how pages of profpipe do. The first ones are
#: colours and moves of the cursor (ECMA-48). They may stand between two words, and between two characters of a word.
_COLOUR: Final = r"(?:\[[0-?]*[ -/]*[@-~]|\][0-9;]*|[()][0-9A-B])"
_ESCAPE: Final = re.compile(
    rf"\x1b{_COLOUR}|\\(?:u001[bB]|x1[bB]|0?33|e){_COLOUR}|<U\+001B>{_COLOUR}|\^\[{_COLOUR}|\x9b[0-?]*[@-~]|&(?:quot|apos|amp|#x27|#3[49]);"
    r"|\\u([0-9a-fA-F]{4})|\\x([0-9a-fA-F]{2})|%([0-9a-fA-F]{2})|<U\+([0-9A-F]{4})>|\\([abefnrtv0\"'\\/\n])"
)
_HEXADECIMAL: Final = range(1, 5)
_BREAK: Final = "\0"
_CHARACTERS: Final = {"n": "\n", "r": "\r", "t": "\t", "\n": "", "\\": "\\", '"': '"', "'": "'", "/": "/"}
#: JSON in JSON in JSON is decoded three times, and a colour in it once more.
_MOST_LEVELS: Final = 4
#: A break, and the end of a line that may have cut a secret in two: letters stand between digits, or digits between
#: letters, in what follows, and not as in ``step100`` or in a time.
_SEAM: Final = re.compile(
    rf"{_BREAK}|(?:\n(?<=[\w.~+/=-]\n)|\r\n(?<=[\w.~+/=-]\r\n))[ \t]*"
    r"(?!\d{4}-\d)(?=[\w.~+/=-]{0,64}?(?:[A-Za-z]\d{1,64}[A-Za-z]|\d[A-Za-z]{1,64}\d))(?=([\w.~+/=-]{8,512}))"
)
_CUT: Final = re.compile(rf"(?:{'|'.join(_TOKENS)}|(?i:{_BESIDE})){_VALUE}*\Z")
_LONGEST_CUT: Final = 200
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
    is_account = bool(_ACCOUNT_NAME.fullmatch(name)) and has_secret_form(f"-u {text}")
    return bool(_PARAMETER.fullmatch(name)) or is_other_key or is_account


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
    secrets: dict[str, str] = {}
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
            secrets |= {value: name[2] for value in values if is_secret(name[2], value)}
    return dict(sorted(secrets.items(), key=lambda item: len(item[0]), reverse=True))


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
    secrets = assigned_secrets(word, before)
    if len(secrets) > _MOST_ASSIGNED:
        return hidden
    for value in secrets:
        word = re.sub(rf"({BEFORE_VALUE}){re.escape(value)}", lambda match: f"{match[1]}{hidden}", word)
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
    return any(True for _ in _decoded_spans(text, _form_spans))


def secrets_in_variable(name: str, value: str) -> list[str]:
    """Return the secrets in an environment variable: its value, and the items of a list. Empty where it holds none."""
    items = [item.strip() for item in re.split("[,;]", value)] if re.search("[,;]", value) else []
    if is_secret_name(name):
        is_size = _NUMBER.fullmatch(value) and len(value) <= _MOST_DIGITS and not _PASSWORD.search(name)
        secrets = [] if is_size or _is_path(value) else [value, *items]
    elif _is_long_text(value) and not (items and not any(map(_is_long_text, items))):
        secrets = [value, *filter(_is_long_text, items)]
    else:
        secrets = [value] if has_secret_form(value) else []
    return list(dict.fromkeys(filter(None, [*secrets, *(_passwords(value) if secrets else ())])))


def secrets_of_placeholders(placeholders: Iterable[tuple[str, str | None]], env: Mapping[str, str]) -> dict[str, str]:
    """Return the secrets that ``${NAME:-default}`` stands for, and ``${NAME}`` for each; from (name, default).

    The default is a secret too where the name of the variable says so.
    """
    secrets: dict[str, str] = {}
    for name, default in placeholders:
        value = env.get(name) or (default if is_secret_name(name) else "") or ""
        secrets |= dict.fromkeys(secrets_in_variable(name, value), f"${{{name}}}")
    return secrets


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
    passwords = [text[start:end] for start, end in _password_spans(text)]
    return [form for password in passwords for form in (password, unquote(password)) if len(form) >= SHORTEST]


def digest(value: object, salt: bytes) -> str:
    """Return the name of a secret value in the results: equal for equal values below one results folder."""
    return f"secret-{hmac.digest(salt, str(value).encode('utf-8', 'surrogatepass'), 'sha256').hex()[:12]}"


# --- texts -----------------------------------------------------------------------------------------------------------


def mask_forms(text: str) -> str:
    """Return ``text`` without what looks like a secret by its form."""
    return _replace(text, _decoded_spans(text, _form_spans))


def secret_parts(text: str) -> list[str]:
    """Return the parts of ``text`` that look like secrets by their form."""
    return list(dict.fromkeys(text[start:end] for start, end, _ in _decoded_spans(text, _form_spans)))


def _replace(text: str, spans: Iterable[_Span]) -> str:
    """Return ``text`` with the public texts of ``spans``. Of spans that overlap, the first and longest names them."""
    pieces, written = [], 0
    for start, end, public in sorted(spans, key=lambda span: (span[0], -span[1], span[2] == _HIDDEN)):
        if start >= written:
            pieces += [text[written:start], public]
        written = max(written, end)
    return "".join([*pieces, text[written:]])


def _decoded_spans(text: str, find: Callable[[str], Iterable[_Span]], levels: int = _MOST_LEVELS) -> Iterator[_Span]:
    """Yield the spans of ``text`` that ``find`` finds in it as it is written, and decoded once or several times.

    The last decoding joins what colours and ends of lines separate.
    """
    escapes = list(_escapes(text)) if levels > 0 else []
    # A backslash may be that of a password, and no escape.
    if not escapes or any(character != _BREAK or text[start] == "\\" for start, _, character in escapes):
        yield from find(text)
    pieces = escapes or (list(_seams(text)) if levels >= 0 else [])
    if not pieces:
        return
    decoded, keys, places, size = [], [0], [0], 0
    for start, end, character in pieces:
        decoded += [text[places[-1] : start], character]
        size += start - places[-1] + len(character)
        # What is removed belongs neither to a span that ends before it nor to one that begins behind it.
        keys.append(2 * size + (not character))
        places.append(end)
    decoded.append(text[places[-1] :])
    for start, end, public in _decoded_spans("".join(decoded), find, levels - 1 if escapes else -1):
        i, j = bisect_right(keys, 2 * start + 1) - 1, bisect_right(keys, 2 * end) - 1
        yield places[i] + start - keys[i] // 2, places[j] + end - keys[j] // 2, public


def _escapes(text: str) -> Iterator[_Span]:
    """Yield where the escapes stand, and the character that each means."""
    for escape in _ESCAPE.finditer(text):
        code = escape[escape.lastindex or 0]
        yield *escape.span(), chr(int(code, 16)) if escape.lastindex in _HEXADECIMAL else _CHARACTERS.get(code, _BREAK)


def _seams(text: str) -> Iterator[_Span]:
    """Yield the breaks, and the ends of lines in a secret that a terminal cut in two: a mix of characters follows."""
    joined = -1
    for seam in _SEAM.finditer(text):
        if seam[0] == _BREAK or joined == seam.start() or _has_open_secret(text, seam.start()):
            joined = seam.end(1)
            yield *seam.span(), ""


def _has_open_secret(text: str, end: int) -> bool:
    """Return True where the line up to ``end`` ends in a secret. The quick patterns reject nearly all lines."""
    line = text[max(text.rfind("\n", 0, end), end - _LONGEST_CUT, 0) : end]
    return bool((_TOKEN_BEGINS.search(line) or _KEY_BEGINS.search(line.lower())) and _CUT.search(line))


def _form_spans(text: str) -> Iterator[_Span]:
    """Yield where the secrets of any form stand."""
    spans = [*_password_spans(text), *_keyed_spans(text), *(match.span(1) for match in _P_OPTION.finditer(text))]
    spans += [match.span(1) for match in _COOKIES.finditer(text)]
    spans += [match.span() for match in (*_matches(_TOKEN_BEGINS, _TOKEN, text), *_PRIVATE_KEY.finditer(text))]
    # The end of a private key whose begin is missing.
    if (first := _KEY_LINES.search(text)) and first[0].startswith("-----END"):
        spans.append((0, first.end()))
    return ((*span, _HIDDEN) for span in spans)


def _password_spans(text: str) -> Iterator[tuple[int, int]]:
    """Yield where the passwords of URLs and of data sources without ``://`` stand."""
    yield from (match.span(1) for match in _URL.finditer(text))
    for host in _HOST.finditer(text):
        account = _ACCOUNT.search(text, max(0, host.start() - _LONGEST_CUT), host.start())
        if account and (host[1] or ("/" not in account[1] and _is_random(account[1]))):
            yield account.span(1)


def _keyed_spans(text: str) -> Iterator[tuple[int, int]]:
    """Yield where random values stand behind their names."""
    # Of the same length as the text. A pattern that ignores case takes ten times as long.
    lower, end = text.replace("\u0130", "I").lower(), 0
    for match in _matches(_KEY_BEGINS, _KEYED, lower):
        start = match.start(1)
        if start >= end and _is_keyed(match, text[start : match.end(1)]):
            end = next(_REST.finditer(text, start)).end()
            yield start, end


def _matches(begins: re.Pattern[str], pattern: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
    """Yield the matches of ``pattern``, which all begin with ``begins``."""
    end = 0
    for begin in begins.finditer(text):
        if begin.start() >= end and (match := pattern.match(text, begin.start())):
            end = match.end()
            yield match


def _is_keyed(match: re.Match[str], value: str) -> bool:
    """Return True for a secret behind its name. "Basic" is a word of English too, unless user:password follows it."""
    key = match[0]
    if not _is_random(value) or (len(value) < _LEAST_VALUE and not key.startswith(("pass", "pwd", "auth", "-"))):
        return False
    if key.startswith("basic"):
        try:
            return ":" in base64.b64decode(value + "=" * (-len(value) % 4), validate=True).decode()
        except ValueError:
            return False
    before = match.string[max(0, match.start() - _LONGEST_CUT) : match.start()]
    return bool(re.search("^bearer|^auth|^-|[:=]", key) or _IN_OPTION.search(before))


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
        return _replace(text, _decoded_spans(text, lambda text: (*self._spans(text), *_form_spans(text))))

    def mask_known(self, text: str) -> str:
        """Return ``text`` without the known secrets."""
        return _replace(text, _decoded_spans(text, self._spans))

    def _spans(self, text: str) -> Iterator[_Span]:
        matches = self._pattern.finditer(text) if self._pattern else ()
        return ((*match.span(), self._public[match[0]]) for match in matches)

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
    texts = [value, *(line.strip() for line in value.splitlines())] if "\n" in value else [value]
    for text in texts:
        yield from (spelling for spelling in dict.fromkeys(_spellings(text)) if len(spelling) >= SHORTEST)


def _spellings(text: str) -> Iterator[str]:
    yield from (text, *(form[1:-1] for form in (json.dumps(text), json.dumps(text, ensure_ascii=False), repr(text))))
    encoded = text.encode("utf-8", "surrogatepass")
    yield from (repr(encoded)[2:-1], quote(encoded, safe=""), quote(encoded), quote_plus(encoded))
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
    secrets: dict[str, str] = {}
    for name, value in environment.items():
        if is_secret_name(name) or has_secret_form(value):
            # A word such as AUTH_MODE=disabled may occur anywhere.
            texts = filter(is_searchable, secrets_in_variable(name, value))
            secrets.update(dict.fromkeys(texts, f"${{{name}}}"))
    return secrets
