"""Find the secrets of a pipeline: what is published in their place, and what the processes of a run get.

docs/security.md says what counts as a secret.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from profpipe import masking
from profpipe.config import yaml
from profpipe.config.models import Pipeline, Workload
from profpipe.job import Scalar, revealed
from profpipe.runner import plan

#: By the text that is published: the value of a parameter.
Hidden = Mapping[str, Scalar]


def of_variables(path: Path, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the secrets that the placeholders of the pipeline file ``path`` stand for, and ``${NAME}`` for each."""
    document = yaml.read(path, yaml.shown(path)) if path.is_file() else {}
    return masking.secrets_of_placeholders(yaml.placeholders(document), environment)


def of_environment_blocks(pipeline: Pipeline, named_secrets: Mapping[str, str]) -> dict[str, str]:
    """Return the secrets in the variables that the workloads set, and ``${NAME}`` for each."""
    placeholders: dict[str, str] = {}
    for settings in (pipeline.defaults, *pipeline.workloads.values()):
        for name, value in settings.env.items():
            if masking.is_secret_name(name) or masking.has_secret_form(value):
                secrets = masking.secrets_in_variable(name, value)
                placeholders |= {secret: f"${{{name}}}" for secret in secrets if secret not in named_secrets}
    return placeholders


def of_words(pipeline: Pipeline) -> dict[str, str]:
    """Return the passwords and the long or random secrets in ``NAME=value`` of commands and of options of Slurm."""
    words = [word for workload in pipeline.workloads.values() for word in workload.command or ()]
    options = [word for workload in pipeline.workloads.values() for word in workload.srun]
    if pipeline.slurm is not None:
        words += pipeline.slurm.setup
        options += [*pipeline.slurm.options, *pipeline.slurm.launcher]
    pairs = itertools.pairwise(("", *words, *options))
    assigned = [item for before, word in pairs for item in masking.assigned_secrets(word, before).items()]
    # A word such as SORT_KEY=seqlen is masked as a whole, but its value may occur anywhere.
    secrets = [secret for secret, name in assigned if masking.is_searchable(secret, name)]
    secrets += [secret for word in options for secret in masking.option_secrets(word) if masking.is_searchable(secret)]
    return dict.fromkeys(secrets, "***")


def hide(pipeline: Pipeline, secrets: Iterable[str], read_salt: Callable[[], bytes]) -> tuple[Pipeline, Hidden]:
    """Return the pipeline with a digest in place of each parameter that holds a secret, and the values by digest.

    Cases are named by these digests. ``secrets`` are those that the caller has; others are recognised by name or form.
    """
    hidden: dict[str, Scalar] = {}
    words = [secret for secret in secrets if len(secret) >= masking.SHORTEST]

    def public(name: str, value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return type(value)(public(name, item) for item in value)
        text = "" if value is None or isinstance(value, bool) else str(value)
        is_secret = masking.is_secret_parameter(name, text) or masking.has_secret_form(text)
        if not text or not (is_secret or any(word in text for word in words)):
            return value
        digest = masking.digest(text, read_salt())
        hidden[digest] = value
        return digest

    def point(values: Mapping[str, Any] | None) -> Any:
        return None if values is None else {name: public(name, value) for name, value in values.items()}

    workloads = {
        name: workload.model_copy(
            update={
                **{part: point(getattr(workload, part)) for part in ("params", "matrix", "baseline")},
                **{part: tuple(map(point, getattr(workload, part))) for part in ("include", "exclude")},
            }
        )
        for name, workload in pipeline.workloads.items()
    }
    studies = {
        part: tuple(study.model_copy(update={"where": point(study.where)}) for study in getattr(pipeline, part))
        for part in ("tables", "plots")
    }
    return (pipeline.model_copy(update={"workloads": workloads, **studies}) if hidden else pipeline), hidden


def of_commands(pipeline: Pipeline, masked: Mapping[str, Workload], hidden: Hidden) -> dict[str, str]:
    """Return each word of a command that contains a secret, with the same word that names the variable instead.

    ``masked`` are the workloads with such words, and with the names in their place. The words are also given as filled
    in for each case.
    """
    if not masked and not hidden:
        return {}
    pairs: list[tuple[Sequence[str], Sequence[str]]] = []
    for name, workload in pipeline.workloads.items():
        command, public = workload.command or (), masked.get(name, workload).command or ()
        for case in plan.cases(workload) if command else ():
            given = plan.fill_command(workload, command, revealed(case.params, hidden))
            pairs.append((given, plan.fill_command(workload, public, case.params)))
    pairs += [(pipeline.workloads[name].command or (), masked[name].command or ()) for name in masked]
    return {word: public for a, b in pairs for word, public in zip(a, b, strict=True) if word and word != public}


def mask_commands(pipeline: Pipeline, path: Path) -> dict[str, Workload]:
    """Return the workloads whose commands contain secrets, with the names of variables in place of the values."""
    entries = yaml.read(path, yaml.shown(path)).get("workloads") if path.is_file() else None
    masked = {}
    for name, entry in (entries or {}).items():
        written, command = (entry or {}).get("command"), pipeline.workloads[name].command or ()
        if not isinstance(written, list) or len(written) != len(command):
            written = command  # the command comes from --set, and not from the environment
        words = tuple(_mask_word(word, given, path) for word, given in zip(written, command, strict=True))
        words = tuple(
            masking.hide_assigned(_mask_option(before, word), before=before)
            for before, word in zip(("", *words), words, strict=False)
        )
        if words != command:
            masked[name] = pipeline.workloads[name].model_copy(update={"command": words})
    return masked


def _mask_word(written: Any, given: str, path: Path) -> str:
    """Return a word of a command with ``${NAME}`` in place of secret variables. ``given`` has their values."""
    placeholders = set(masking.secrets_of_placeholders(yaml.placeholders(written), os.environ).values())
    names = {name: f"${{{name}}}" for name, _ in yaml.placeholders(written) if f"${{{name}}}" in placeholders}
    word = str(yaml.substituted(written, {**os.environ, **names}, path.name)) if names else given
    return masking.mask_forms(word)


def _mask_option(option: str, word: str) -> str:
    """Return ``word`` without the value that belongs to an option such as ``--api-key``."""
    name, equals, value = word.partition("=")
    if equals and value and masking.is_secret_option(name, value) and "${" not in value:
        return f"{name}=***"
    return "***" if masking.is_secret_option(option, word) and not word.startswith(("-", "${")) else word
