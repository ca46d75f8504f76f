"""Canonical JSON data of a value in a request: all that it is made of, and no address.

Text, numbers and containers are themselves. Files, arrays, tensors and pictures are their content. A function is its
code, its defaults, its closure and the globals that it names; an object is its class and its state, as pickle sees it.
Whatever an installed package or the standard library defines under a name is that name.
"""

from __future__ import annotations

import copyreg
import functools
import hashlib
import json
import math
import os
import sys
import types
from collections.abc import Iterator, Set
from pathlib import Path
from typing import Any

from lmql_lite.cache.responses.request import scalar

MEDIA = (
    ".png", ".jpg", ".jpeg", ".gif", ".webp", ".bmp", ".tif", ".tiff", ".mp4", ".avi", ".mov", ".mkv", ".webm", ".m4v",
    ".wav", ".mp3", ".flac", ".ogg", ".m4a", ".pdf", ".npy", ".npz", ".pt", ".safetensors",
)  # fmt: skip
"""Endings of a text that is the path of a file, if there is such a file: then its content counts too."""
MAX_OBJECTS = 100_000
"""Maximum number of functions, classes and objects that one value may consist of."""
_PACKAGES = frozenset(("site-packages", "dist-packages"))
_INERT = frozenset(("_thread", "logging", "loguru", "structlog"))
"""Modules of locks and loggers, which change no answer."""
_CACHED = type(functools.lru_cache(len))
_SLOTS = (types.MemberDescriptorType, types.GetSetDescriptorType)
_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False).encode


class Unkeyable(ValueError):
    """A request holds a value that cannot be part of a key. The sentence names the value."""


def canonical(value: Any) -> Any:
    """JSON data, equal for equivalent values: `0.0` and `0`, a tuple and a list. Raises Unkeyable."""
    kind = type(value)
    return value if kind is int and value.bit_length() < 1024 else _text(value) if kind is str else _Walk().data(value)


def compact(value: Any) -> str:
    return str(value) if type(value) is int else _encode(value)  # an encoder is made anew for all but texts


def digest(data: Any) -> str:
    """SHA-256 of canonical data."""
    return hashlib.sha256(compact(data).encode()).hexdigest()


def tagged(kind: str, value: Any) -> dict[str, Any]:
    """A value that JSON lacks."""
    return {"$": kind, "v": value}


class _Walk:
    """Walk through one value. Objects that occur twice, or contain themselves, are numbered by their first place."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._alive: list[Any] = []
        """Numbered objects, which must outlive their addresses."""

    def data(self, value: Any) -> Any:
        kind = type(value)
        if value is None or kind is bool:
            return value
        if kind is str:
            return _text(value)
        if kind is int:
            return value if value.bit_length() < 1024 else tagged("int", hex(value))
        if kind is float:
            if not math.isfinite(value):
                return tagged("float", repr(value))
            return int(value) if value.is_integer() else value
        if isinstance(value, dict | list | tuple | Set) and not getattr(value, "__dict__", None):
            return self._container(value)
        if kind.__module__ == "numpy" and type(plain := scalar(value)) in (str, bool, int, float):
            return self.data(plain)
        return self._other(value)

    def _container(self, value: Any) -> Any:
        if isinstance(value, Set):  # each element by itself, since the order of a set differs between processes
            return tagged("set", sorted(map(canonical, value), key=compact))
        if not isinstance(value, dict):
            return [self.data(each) for each in value]
        if all(type(name) is str for name in value):
            found = {name: self.data(value[name]) for name in sorted(value)}
            return tagged("dict", found) if "$" in found else found
        return tagged("map", sorted(([self.data(name), self.data(each)] for name, each in value.items()), key=compact))

    def _other(self, value: Any) -> Any:
        """Data of a value that JSON lacks."""
        if isinstance(value, bytes | bytearray | memoryview):
            return tagged("bytes", hashlib.sha256(bytes(value)).hexdigest())
        if isinstance(value, Path):
            if not value.is_file():
                raise Unkeyable(f"a request holds the path {str(value)!r}, which is not a file")
            return tagged("file", [value.name, file_digest(value)])
        if type(value).__module__.partition(".")[0] in _INERT:
            return tagged("inert", "")
        if (library := _library_name(value)) is not None:
            return tagged("name", library)
        if (inner := _inner(value)) is not value:
            return tagged(type(value).__name__, self.data(inner))
        if (content := _content(value)) is not None:
            return content
        if isinstance(value, types.MethodType):
            return self._method(value)
        if (number := self._numbers.get(id(value))) is not None:
            return tagged("again", number)
        if len(self._numbers) >= MAX_OBJECTS:
            raise Unkeyable(f"a request holds an object of more than {MAX_OBJECTS:,} parts")
        self._numbers[id(value)] = len(self._numbers)
        self._alive.append(value)
        if isinstance(value, types.FunctionType):
            return self._function(value)
        return self._class(value) if isinstance(value, type) else self._object(value)

    def _function(self, function: types.FunctionType) -> Any:
        parts = [function.__defaults__, function.__kwdefaults__, _cells(function), vars(function)]
        return tagged("function", [function.__qualname__, _code(function.__code__), [self.data(each) for each in parts],
                                   self._globals(function)])  # fmt: skip

    def _globals(self, function: types.FunctionType) -> dict[str, Any]:
        """Values that a function names in its own module and in others of the user's own. A path is its text: no key
        sees the files that a function opens."""
        names, scopes, found = _names(function), [function.__globals__], dict[str, Any]()
        for place, scope in enumerate(scopes):
            for name in sorted(names & scope.keys()):
                value = scope[name]
                if not isinstance(value, types.ModuleType):
                    found[f"{place} {name}"] = str(value) if isinstance(value, Path) else self.data(value)
                elif _is_library(value.__name__):
                    found[f"{place} {name}"] = value.__name__
                elif all(vars(value) is not each for each in scopes):
                    scopes.append(vars(value))
        return found

    def _method(self, method: types.MethodType) -> Any:
        """A method with those attributes of its object that its code names, also in other methods and in functions that
        it calls. With the whole object if it asks for that."""
        owner, found = method.__self__, dict[str, Any]()
        waiting: list[Any] = [method.__func__]
        state = getattr(owner, "__dict__", None)
        if isinstance(owner, type) or not isinstance(state, dict):
            return tagged("method", [self.data(method.__func__), self.data(owner)])
        while waiting:
            function = waiting.pop()
            if not isinstance(function, types.FunctionType):
                continue
            for name in sorted(_names(function) - found.keys()):
                if name in ("vars", "__dict__"):
                    return tagged("method", [self.data(method.__func__), self.data(owner)])
                values = [vars(kind)[name] for kind in type(owner).__mro__ if name in vars(kind)]
                found[name] = values
                called = function.__globals__.get(name)
                waiting += [_inner(each) for each in values]
                waiting += [called] if _library_name(called) is None else []
                if name in state and not any(isinstance(each, functools.cached_property) for each in values):
                    found[name] = [state[name], *values]
        attributes = {name: [self.data(each) for each in found[name] if not isinstance(each, _SLOTS)]
                      for name in sorted(found) if found[name]}  # fmt: skip
        return tagged("reader", [self.data(method.__func__), attributes])

    def _class(self, kind: type) -> Any:
        content = {name: self.data(value) for name, value in vars(kind).items() if _is_content(name, value)}
        return tagged("class", [kind.__qualname__, [self.data(base) for base in kind.__bases__], content])

    def _object(self, value: Any) -> Any:
        kind = type(value)
        refusal = Unkeyable(f"a request holds a value of type {kind.__qualname__}, which no key can represent")
        if kind is object:
            raise refusal
        try:
            reducer = copyreg.dispatch_table.get(kind)
            reduced = reducer(value) if reducer is not None else value.__reduce_ex__(4)
        except (TypeError, ValueError, AttributeError, RuntimeError, OSError, LookupError):  # it cannot be copied
            raise refusal from None
        if isinstance(reduced, str):  # a name in a module
            if not _is_library(kind.__module__):
                raise refusal
            return tagged("name", [kind.__module__, reduced])
        make, arguments, state, items, pairs = (*reduced, None, None, None)[:5]
        parts = [make, arguments, state, list(items or ()), list(pairs or ())]
        self._alive.append(parts)
        return tagged("object", [self.data(each) for each in parts])


# Code ----------------------------------------------------------------------------------------------------------------


def _inner(value: Any) -> Any:
    """The function in a property, a static method, a cached function and the like; other values as they are."""
    if isinstance(value, property):
        return value.fget
    if isinstance(value, functools.cached_property):
        return value.func
    return value.__wrapped__ if isinstance(value, staticmethod | classmethod | _CACHED) else value


def _cells(function: types.FunctionType) -> list[Any]:
    """Contents of a closure, without variables that have no value yet."""
    found = []
    for cell in function.__closure__ or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:
            continue
    return found


def _code(code: types.CodeType) -> list[Any]:
    about = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags, code.co_name,
             code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)  # fmt: skip
    constants = [_code(each) if isinstance(each, types.CodeType) else _constant(each) for each in code.co_consts]
    return [code.co_code.hex(), code.co_exceptiontable.hex(), *about, constants]


def _constant(value: Any) -> Any:
    return sorted(map(repr, value)) if isinstance(value, frozenset) else repr(value)


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """A code object and those inside it."""
    yield code
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            yield from _codes(each)


def _names(function: types.FunctionType) -> Set[str]:
    """Names in a function's code, and its texts, which may be names for `getattr`."""
    found = set[str]()
    for code in _codes(function.__code__):
        found |= {*code.co_names, *(each for each in code.co_consts if isinstance(each, str))}
    return found


def _is_content(name: str, value: Any) -> bool:
    """True for an attribute of a class that does not follow from its others: Python's own names count as functions and
    annotations only."""
    if name.startswith("__"):
        return name == "__annotations__" or isinstance(value, types.FunctionType | staticmethod | classmethod)
    return name != "_abc_impl" and not isinstance(value, _SLOTS)


def _library_name(value: Any) -> list[str] | None:
    """Module and name of what an installed package or the standard library defines under that name; None otherwise."""
    if isinstance(value, types.ModuleType):
        return [value.__name__, ""] if _is_library(value.__name__) else None
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if isinstance(module, str) and isinstance(name, str) and _is_library(module):
        found: Any = sys.modules.get(module)
        for part in name.split("."):
            found = getattr(found, part, None)
        return [module, name] if found is value else None
    return None


def _is_library(name: str) -> bool:
    """True for a module of the standard library or of an installed package."""
    if name.partition(".")[0] in sys.stdlib_module_names and name != "__main__":
        return True
    file = getattr(sys.modules.get(name), "__file__", None)
    return isinstance(file, str) and not _PACKAGES.isdisjoint(Path(file).parts)


# Content of files, arrays, tensors and pictures ----------------------------------------------------------------------


def _text(value: str) -> Any:
    """A text. The path of a picture, a video and so on, by its ending, counts with the content of the file."""
    if value[-12:].lower().endswith(MEDIA) and len(value) < 4096 and "\0" not in value:
        file = value.removeprefix("file://")
        if os.path.isfile(file):
            return tagged("path", [value, file_digest(Path(file))])
    return value


def file_digest(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise Unkeyable(f"a request holds the file {str(path)!r}, which cannot be read ({error.strerror})") from None


def _content(value: Any) -> Any:
    """Data of an array of numbers, a tensor or a picture; None for other values. Their packages are not imported
    here."""
    numpy, torch, pictures = (sys.modules.get(name) for name in ("numpy", "torch", "PIL.Image"))
    if numpy is not None and type(value) is numpy.ndarray and not value.dtype.hasobject:
        about = [repr(value.dtype), value.dtype.str, list(value.shape)]
        return tagged("array", [*about, hashlib.sha256(numpy.ascontiguousarray(value).tobytes()).hexdigest()])
    if torch is not None and isinstance(value, torch.Tensor):
        try:
            flat = value.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
            content = hashlib.sha256(flat.view(torch.uint8).numpy()).hexdigest()
        except (RuntimeError, TypeError) as error:
            raise Unkeyable(f"a request holds a value of type Tensor, which cannot be read ({error})") from None
        return tagged("tensor", [type(value).__name__, str(value.dtype), list(value.shape), content])
    if pictures is not None and isinstance(value, pictures.Image):
        from PIL import ImageSequence

        shown = value.tell()
        frames = [_frame(each) for each in ImageSequence.Iterator(value)]
        value.seek(shown)
        return tagged("picture", frames)
    return None


def _frame(picture: Any) -> Any:
    data = picture.tobytes()
    palette = picture.palette.getdata() if picture.palette is not None else None
    return [picture.mode, list(picture.size), hashlib.sha256(data).hexdigest(), canonical(palette),
            canonical(picture.info), canonical(dict(picture.getexif()))]  # fmt: skip
