"""Fill the templates of the pages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jinja2
import jinja2.sandbox

from profpipe.errors import ProfpipeError, one_line


def fill_template(
    template: Path, values: Mapping[str, object], autoescape: bool = False, **filters: Callable[[Any], str]
) -> str:
    """Return the text that ``template`` makes of ``values``.

    Raises ProfpipeError where a template of the user is wrong or out of date.
    """
    # A template may come from somebody else: in the sandbox it reads the values and reaches nothing else.
    jinja = jinja2.sandbox.SandboxedEnvironment(
        loader=jinja2.FileSystemLoader(template.parent),
        autoescape=autoescape,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    jinja.filters.update(filters)
    try:
        return jinja.get_template(template.name).render(values)
    except jinja2.TemplateError as error:
        line = f":{error.lineno}" if isinstance(error, jinja2.TemplateSyntaxError) else ""
        remedy = "Compare it with the template of this version of profpipe; the tables are written."
        raise ProfpipeError(f"{template}{line}: {error.message}. {remedy}") from error
    except (ArithmeticError, LookupError, OSError, TypeError, ValueError) as error:  # of an expression in it
        raise ProfpipeError(f"{template}: {one_line(error)}. Correct the template; the tables are written.") from error
