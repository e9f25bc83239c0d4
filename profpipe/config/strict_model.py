"""The base of the models of a pipeline file."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class StrictModel(BaseModel):
    """A mapping of a pipeline file: it refuses unknown keys."""

    # Defaults are validated too: a resumed run reads back their normalised form and must find the same values.
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)
