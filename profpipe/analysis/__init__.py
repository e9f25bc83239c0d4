"""The tables to findings: dataclasses without wording."""
