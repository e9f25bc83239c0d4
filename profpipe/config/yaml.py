"""Read a pipeline file as plain data: safe YAML with its placeholders replaced, not validated yet."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from profpipe import plugins
from profpipe.errors import ConfigError, did_you_mean
from profpipe.job import as_text

PLACEHOLDER = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_EXPONENTIAL = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)[eE][-+]?\d+$")


#: Characters of a pipeline file, and its values with all aliases written out. PyYAML reads 0.2 MB a second.
_LONGEST, _MOST_VALUES = 1 << 19, 50_000
#: Of a whole number, without its sign.
_MOST_BITS = 63


def as_list(value: object, read: Callable[[str], Any] | None = None) -> object:
    """Return a single value, or ``1024,4096`` as an environment variable holds it, as a list.

    ``;`` separates values that contain commas: ``128;128,128`` is 128 and 128,128. ``read`` makes a value of an item,
    ``scalar`` by default.
    """
    if isinstance(value, str) and ("," in value or ";" in value):
        items = value.split(";" if ";" in value else ",")
        return [(read or scalar)(item.strip()) for item in items if item.strip()]
    return [value] if isinstance(value, (str, int, float, bool)) else value


def scalar(text: str) -> Any:
    """Return ``text`` as YAML reads an unquoted value: 16 is a number, true a bool, fp16 a string.

    Raises ValueError for text that YAML cannot read: ``[128``, ``*x``.
    """
    try:
        value = yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        why = getattr(error, "problem", None) or " ".join(str(error).split())
        raise ValueError(f"{text!r} is no value of YAML: {why}") from None
    value = value.value if isinstance(value, _Written) else value
    return value if isinstance(value, (int, float, bool)) or value is None else text


def word(text: str) -> Any:
    """Return ``text`` as a parameter of a command: a number or a bool only where that has the same text.

    A program gets 010, 1.10, 1e5, False, null and [128 as they were written.
    """
    try:
        value = scalar(text)
    except ValueError:
        return text
    return value if as_text(value) == text else text


@dataclass(frozen=True)
class _Written:
    """A value whose text in the file is another one than ``as_text`` gives: 010, which is 8."""

    value: Any
    text: str


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader with four differences.

    A duplicate key is an error; PyYAML keeps the last one. ``1e-3`` is a number as in YAML 1.2; PyYAML reads YAML 1.1,
    which demands a point and a signed exponent. A whole number beyond 64 bits is an error: no table holds it. The text
    of a value is kept as ``_Written`` until it is clear whether the value is for a command.
    """

    def construct_scalar_as_written(self, node: yaml.ScalarNode) -> Any:
        kind = node.tag.rpartition(":")[2]
        try:
            value = getattr(self, f"construct_yaml_{kind}")(node)
        except ValueError as error:  # 2024-13-45 looks like a date
            raise yaml.constructor.ConstructorError(None, None, str(error), node.start_mark) from None
        return value if kind != "timestamp" and as_text(value) == node.value else _Written(value, node.value)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode) or key_node.tag == "tag:yaml.org,2002:merge":
                continue
            if key_node.value in seen:
                problem = f"the key '{key_node.value}' is given twice"
                raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
            seen.add(key_node.value)
        return super().construct_mapping(node, deep)

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        value = int(super().construct_yaml_int(node))
        if value.bit_length() > _MOST_BITS:
            problem = f"the number {node.value[:20]}... has more than 64 bits"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
        return value


for _kind in ("int", "float", "bool", "null", "timestamp"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_kind}", _Loader.construct_scalar_as_written)
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENTIAL, list("-+.0123456789"))


@functools.lru_cache(maxsize=1)
def _parsed(text: str) -> Any:
    """Return the value of a YAML text. One command reads its pipeline file three times."""
    return yaml.load(text, Loader=_Loader)


def read(path: Path, where: str) -> dict[str, Any]:
    """Return the mapping in a YAML file. ``where`` names the file in a ConfigError."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        studies = plugins.builtin_folder("pipelines").glob("*.yaml")
        remedy = did_you_mean(str(path), [study.stem for study in studies])
        if not remedy.startswith("Did you mean"):
            remedy = "Name a pipeline file: profpipe run FILE. For a program: profpipe run -- python train.py."
        raise ConfigError(where, f"{error.strerror or error}.", remedy) from None
    except UnicodeDecodeError:
        raise ConfigError(where, "is not UTF-8 text.", "Save it as UTF-8.") from None
    if len(text) > _LONGEST:
        raise ConfigError(where, f"has more than {_LONGEST:,} characters.", "Split it into several pipeline files.")
    try:
        document = _parsed(text)
    except yaml.MarkedYAMLError as error:
        line = f"{where}:{error.problem_mark.line + 1}" if error.problem_mark else where
        raise ConfigError(line, f"is not YAML: {error.problem or error}") from None
    except yaml.reader.ReaderError as error:
        line = f"{where}:{text.count(chr(10), 0, error.position) + 1}"
        raise ConfigError(line, f"is not YAML: the character U+{error.character:04X} is not allowed.") from None
    except yaml.YAMLError as error:
        raise ConfigError(where, f"is not YAML: {error}") from None
    except RecursionError:
        raise ConfigError(where, "is nested too deeply.", "A pipeline file has a handful of levels.") from None
    _check_values(document, where, path)
    if not isinstance(document, dict):
        raise ConfigError(where, "is empty or not a mapping.", "It needs at least 'version: 1' and 'workloads:'.")
    return _settled(document)


def _settled(node: Any, path: tuple[Any, ...] = (), commands: Collection[Any] = ()) -> Any:
    """Return a copy of ``node`` with the text of parameters and words of commands, and otherwise with the values."""
    if isinstance(node, _Written):
        return node.text if is_parameter(path, commands) or _is_word(path) else node.value
    if isinstance(node, (int, float)) and _is_word(path):
        return as_text(node)
    if isinstance(node, dict):
        commands = commands if path else commands_of(node)
        keys = {key: key.value if isinstance(key, _Written) else key for key in node}
        return {keys[key]: _settled(value, (*path, keys[key]), commands) for key, value in node.items()}
    if isinstance(node, list):
        return [_settled(item, (*path, index), commands) for index, item in enumerate(node)]
    return node


def commands_of(document: Mapping[Any, Any]) -> list[Any]:
    """Return the names of the workloads in an unvalidated document that are commands."""
    workloads = mapping_at(document, "workloads")
    return [name for name, workload in workloads.items() if isinstance(workload, dict) and "command" in workload]


def is_parameter(path: Sequence[Any], commands: Collection[Any]) -> bool:
    """Return True if a parameter of one of the workloads ``commands`` is at ``path`` of a pipeline file."""
    parts = ("params", "matrix", "include", "exclude", "baseline")
    return len(path) > 2 and path[0] == "workloads" and path[1] in commands and path[2] in parts


def _check_values(document: Any, where: str, file: Path) -> None:
    """Raise ConfigError for an alias (``*a``) inside its value, and for more values than a pipeline has.

    Aliases of aliases stand for millions of values.
    """
    sizes: dict[int, int] = {}

    def size(node: Any, path: tuple[str, ...], around: tuple[int, ...]) -> int:
        if id(node) in around:
            what = "is an alias of what it stands in."
            raise ConfigError(place_of(where, ".".join(path), file), what, "Write out what it means.")
        children = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
        if children and id(node) not in sizes:
            sizes[id(node)] = 1 + sum(size(child, (*path, str(key)), (*around, id(node))) for key, child in children)
        return sizes.get(id(node), 1)

    if size(document, (), ()) > _MOST_VALUES:
        remedy = "Write lists of values, whose product profpipe makes."
        raise ConfigError(where, f"has more than {_MOST_VALUES:,} values, aliases written out.", remedy)


@functools.lru_cache(maxsize=1)
def _composed(text: str) -> yaml.Node | None:
    return yaml.compose(text, Loader=_Loader)


def line_of(path: Path, at: str) -> int | None:
    """Return the line of ``at`` in the file ``path``, from 1, or of what it would stand in; None without either.

    ``at`` is a path in the file with dots. Keys may have dots too.
    """
    try:
        node = _composed(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return None
    line = None
    while at and isinstance(node, yaml.CollectionNode):
        is_mapping = isinstance(node, yaml.MappingNode)
        children = [(str(key.value), key, value) for key, value in node.value] if is_mapping else [
            (str(index), item, item) for index, item in enumerate(node.value)
        ]  # fmt: skip
        names = [child for child in children if f"{at}.".startswith(f"{child[0]}.")]
        if not names:
            break
        name, key, node = max(names, key=lambda child: len(child[0]))
        line, at = key.start_mark.line + 1, at[len(name) + 1 :]
    return line


def place_of(where: str, at: str, file: Path | None, word: str = "") -> str:
    """Return ``pipeline.yaml:7: workloads.w.repeats``; the line is that of the key ``word`` in it, if any.

    ``file`` is None where the value at ``at`` does not come from a file.
    """
    line = line_of(file, f"{at}.{word}" if at and word else at or word) if file else None
    return ": ".join(filter(None, [f"{where}:{line}" if line else where, at]))


def shown(path: Path) -> str:
    """Return a path as the user would type it: relative to the current folder if it is below it."""
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def substituted(
    node: Any,
    env: Mapping[str, str],
    where: str,
    path: tuple[str, ...] = (),
    commands: Collection[Any] = (),
    file: Path | None = None,
) -> Any:
    """Return ``node`` with all ``${NAME:-default}`` replaced.

    A value that is one placeholder gets its YAML type back, except where ``takes_text``, and a parameter of one of the
    workloads ``commands`` as ``word`` does. ``file`` is where ``node`` is written.
    """
    if isinstance(node, dict):
        commands = commands if path else commands_of(node)
        return {k: substituted(v, env, where, (*path, str(k)), commands, file) for k, v in node.items()}
    if isinstance(node, list):
        return [substituted(v, env, where, (*path, str(i)), commands, file) for i, v in enumerate(node)]
    if not isinstance(node, str) or "${" not in node:
        return node

    def value(match: re.Match[str]) -> str:
        # As in the shell, ':-' also replaces a variable that is set and empty.
        given = env.get(match[1]) or match[2]
        if given is None:
            raise ConfigError(
                place_of(where, ".".join(path), file),
                f"environment variable {match[1]} is not set and has no default.",
                f"Set it, or write ${{{match[1]}:-VALUE}}.",
            )
        return given

    text = PLACEHOLDER.sub(value, node)
    if not (whole := PLACEHOLDER.fullmatch(node)) or takes_text(path):
        return text
    try:
        return word(text) if is_parameter(path, commands) else scalar(text)
    except ValueError as error:
        remedy = f"Set {whole[1]} to a number or a word, or write the text into the file, in quotes."
        place = place_of(where, ".".join(path), file)
        raise ConfigError(place, f"environment variable {whole[1]}: {error}.", remedy) from None


def takes_text(path: tuple[str, ...]) -> bool:
    """Return True if the value at ``path`` of a pipeline file is always text, as in commands and ``env``."""
    return path[:1] == ("slurm",) or _is_word(path)  # YAML takes the time 1:30:00 for a number


def _is_word(path: Sequence[Any]) -> bool:
    """Return True if ``path`` is that of a word of a command or of an environment variable."""
    return path[2 if path[:1] == ("workloads",) else 1 :][:1] in (("command",), ("env",))


def placeholders(node: Any, without: str | None = None) -> Iterator[tuple[str, str | None]]:
    """Yield name and default of the environment variables in ``node``, except those below a key ``without``."""
    if isinstance(node, dict):
        node = [value for key, value in node.items() if key != without]
    if isinstance(node, list):
        for item in node:
            yield from placeholders(item, without)
    elif isinstance(node, str):
        yield from ((match[1], match[2]) for match in PLACEHOLDER.finditer(node))


def mapping_at(node: Any, *keys: str) -> dict[str, Any]:
    """Return the mapping below ``keys`` of an unvalidated document; an empty one if there is none."""
    for key in keys:
        node = node.get(key) if isinstance(node, dict) else None
    return node if isinstance(node, dict) else {}


def written_list(node: Any) -> list[Any] | None:
    """Return the values that the author wrote for a list, or None if the node is no list.

    A placeholder stands for its default, or for None if it has no default.
    """
    try:
        if isinstance(node, list):
            return [_default(item) for item in node]
        values = as_list(_default(node))
    except ValueError:
        return None
    return values if isinstance(values, list) else None


def _default(node: Any) -> Any:
    if isinstance(node, str) and (match := PLACEHOLDER.fullmatch(node)):
        return None if match[2] is None else scalar(match[2])
    return node
