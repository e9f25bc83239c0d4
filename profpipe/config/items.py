"""The items, such as tokens or samples, that one step processes: a number, or arithmetic on the case's parameters."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any, Final

_OPERATORS: Final[Mapping[type[ast.operator], Callable[[float, float], float]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}


def parameters(expression: str) -> list[str]:
    """Return the names in an expression such as ``batch * 1024``. Raises ValueError if it is none."""
    return list(dict.fromkeys(node.id for node in ast.walk(_parse(expression)) if isinstance(node, ast.Name)))


def items_of(expression: float | str | None, params: Mapping[str, Any]) -> float | None:
    """Return the items of a step of the case with ``params``; None without an expression.

    Raises ValueError where a parameter is missing or no number, or where the result is no positive number.
    """
    if expression is None:
        return None
    try:
        value = expression if not isinstance(expression, str) else _value(_parse(expression).body, params)
    except ZeroDivisionError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{expression} is {value:g}, no positive number")
    return float(value)


#: Characters. Python's parser and the evaluation below are recursive: a long expression ends them in a MemoryError or
#: a RecursionError.
_LONGEST = 300


def _parse(expression: str) -> ast.Expression:
    if len(expression) > _LONGEST:
        raise ValueError(f"{expression[:30]!r}... has {len(expression):,} characters, more than {_LONGEST}")
    try:
        # {batch} is how a command names a parameter.
        tree = ast.parse(expression.replace("{", "(").replace("}", ")").strip(), mode="eval")
    except SyntaxError:
        raise ValueError(f"{expression!r} is no number and no arithmetic on parameters") from None
    for node in ast.walk(tree):
        if not isinstance(
            node, (ast.Expression, ast.BinOp, ast.Name, ast.Load, ast.Constant, *_OPERATORS)
        ) or not isinstance(getattr(node, "value", 0), (int, float)):
            raise ValueError(f"{expression!r} may hold numbers, parameters and + - * / // only")
    return tree


def _value(node: ast.expr, params: Mapping[str, Any]) -> float:
    if isinstance(node, ast.BinOp):
        return _OPERATORS[type(node.op)](_value(node.left, params), _value(node.right, params))
    if isinstance(node, ast.Constant):
        return float(node.value)  # type: ignore[arg-type]
    assert isinstance(node, ast.Name)
    value = params.get(node.id)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"the parameter {node.id} is {value!r}, no number")
    return float(value)
