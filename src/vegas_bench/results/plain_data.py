"""Dataclasses from plain data (parsed JSON), every field checked against its annotation."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

Class = TypeVar("Class")


class PlainDataError(ValueError):
    """A field is missing, unknown or of the wrong type; the message says which."""


def from_plain(cls: type[Class], data: object, where: str = "") -> Class:
    """Build a dataclass from a mapping.

    Understood annotations: int, float (an int will do), str, bool, None, Any, Literal, unions, ``list[...]`` and
    ``dict[str, ...]``.

    Parameters
    ----------
    cls : type
        The dataclass.
    data : object
        What should be a mapping of its fields.
    where : str
        What to call it in messages.

    Raises
    ------
    PlainDataError
        For the first field that does not fit.

    """
    at = where or "it"
    if not isinstance(data, Mapping):
        raise PlainDataError(f"{at} must be an object; got {_shown(data)}")
    hints = typing.get_type_hints(cls)
    fields = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    unknown = [name for name in data if name not in fields]
    if unknown:
        raise PlainDataError(f"{at} has an unknown field {unknown[0]!r}; known: {', '.join(fields)}")
    for name, field in fields.items():
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if name in data:
            if not fits(data[name], hints[name]):
                raise PlainDataError(f"{name} of {at} must be {_name(hints[name])}; got {_shown(data[name])}")
        elif required:
            raise PlainDataError(f"{at} lacks the field {name!r}")
    return cls(**data)


def fits(value: object, hint: Any) -> bool:
    """Whether plain data is what an annotation says."""
    if hint is Any:
        return True
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return any(fits(value, each) for each in arguments)
    if origin is Literal:
        return value in arguments
    if origin is list:
        return isinstance(value, list) and all(fits(each, arguments[0]) for each in value)
    if origin is dict:
        return isinstance(value, dict) and all(
            fits(key, arguments[0]) and fits(each, arguments[1]) for key, each in value.items()
        )
    if hint in (int, float) and isinstance(value, bool):
        return False
    return isinstance(value, int | float if hint is float else hint)


def _name(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) and not get_args(hint) else str(hint).replace("typing.", "")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
