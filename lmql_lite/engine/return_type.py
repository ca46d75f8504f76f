"""Return annotation of a Python function, and the check of the value that its query returns."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Mapping
from functools import cached_property
from types import FunctionType
from typing import TYPE_CHECKING, Any

from lmql_lite.errors import ConstraintError, InputError, Span
from lmql_lite.program.ops import Program

if TYPE_CHECKING:
    from pydantic import TypeAdapter


class ReturnAnnotation:
    """Return annotation, evaluated at the first value, since it may name objects defined below the function."""

    def __init__(self, function: FunctionType, scope: Mapping[str, Any], program: Program) -> None:
        self._function = function
        self._scope = scope
        self._program = program

    def typed(self, value: Any) -> Any:
        """The value, converted as pydantic does (`"42"` to an int, a dict to a dataclass).

        Raises ConstraintError if the value does not fit, and InputError for an annotation that is not a type.
        """
        if self._adapter is None:
            return value
        from pydantic import ValidationError

        try:
            return self._adapter.validate_python((value,))[0]
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = "".join(f"{part}: " for part in first["loc"][1:])
            raise ConstraintError(
                f"{self._name} must return {self._shown}, but returned {value!r}: {place}{_sentence(first['msg'])}",
                span=self._place,
                hint="ask for it with a typed hole, or change the annotation",
            ) from None

    @cached_property
    def _adapter(self) -> TypeAdapter[Any] | None:
        """The validator of a tuple of one value, in which classes keep configurations of their own; None if there is
        nothing to check."""
        annotation = self._annotation
        if annotation in (inspect.Signature.empty, Any):
            return None
        from pydantic import ConfigDict, TypeAdapter
        from pydantic.errors import PydanticUndefinedAnnotation, PydanticUserError

        try:
            return TypeAdapter(tuple[annotation], config=ConfigDict(arbitrary_types_allowed=True))  # type: ignore[valid-type]
        except (PydanticUserError, PydanticUndefinedAnnotation, TypeError) as error:
            raise InputError(f"{self._name} returns {self._shown}, which is not a type: {error}") from None

    @cached_property
    def _annotation(self) -> Any:
        written = self._function.__annotations__.get("return", inspect.Signature.empty)

        def holder() -> None: ...

        holder.__annotations__ = {"return": written}
        names = {**self._scope, **inspect.getclosurevars(self._function).nonlocals}
        try:
            return typing.get_type_hints(holder, self._function.__globals__, names, include_extras=True)["return"]
        except Exception as error:
            raise InputError(
                f"{self._name} returns {written!r}, which cannot be read: {error}",
                hint="import the name where the function is defined, and not only for the type checker",
            ) from None

    @property
    def _name(self) -> str:
        return f"{self._function.__name__}()"

    @property
    def _shown(self) -> str:
        written = self._function.__annotations__["return"]
        return written if isinstance(written, str) else inspect.formatannotation(written, self._function.__module__)

    @property
    def _place(self) -> Span | None:
        """Place of the query's `return`, if it has only one."""
        places = self._program.return_spans
        return places[0] if len(places) == 1 else None


def named_in(annotation: object) -> list[str]:
    """Words of an annotation given as text, which include the names that it reads."""
    return re.findall(r"[^\W\d]\w*", str(annotation))


def _sentence(message: str) -> str:
    return message[:1].lower() + message[1:]
