"""Canonical JSON data of any value: all that it is made of, and no address, so that equal data means an equal value.

Text, numbers and containers are themselves. Files, arrays, tensors and pictures are their content. A function is its
code, its defaults, its closure and the globals that it reads; an object is its class and its state, as pickle sees it.
Whatever an installed package or the standard library defines under a name is that name.
"""

from __future__ import annotations

import copyreg
import dis
import enum
import functools
import hashlib
import importlib.util
import inspect
import json
import logging
import math
import os
import re
import sys
import types
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

MEDIA = (
    ".png", ".jpg", ".jpeg", ".gif", ".webp", ".bmp", ".tif", ".tiff", ".mp4", ".avi", ".mov", ".mkv", ".webm", ".m4v",
    ".wav", ".mp3", ".flac", ".ogg", ".m4a", ".pdf", ".npy", ".npz", ".pt", ".safetensors",
)  # fmt: skip
"""Endings of a text that is the path of a file, if there is such a file: then its content counts too."""
MAX_OBJECTS = 100_000
"""Maximum number of functions, classes and objects that one value may consist of."""
_PACKAGES = frozenset(("site-packages", "dist-packages"))
_INERT = frozenset(("_thread", "loguru", "structlog"))
"""Modules of locks and loggers, which change no answer."""
_CACHED = type(functools.lru_cache(len))
_SLOTS = (types.MemberDescriptorType, types.GetSetDescriptorType)
_FAILURES = (TypeError, ValueError, AttributeError, RuntimeError, NotImplementedError, OSError, KeyError, IndexError)
"""Errors of objects that cannot say what they are made of."""
_PART = "; it is in "
_IMPORT = dis.opmap["IMPORT_NAME"]
_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False).encode


class Unkeyable(ValueError):
    """A request holds a value that cannot be part of a key. The sentence names the value."""


def canonical(value: Any) -> Any:
    """JSON data, equal for equivalent values: `0.0` and `0`, a tuple and a list. Raises Unkeyable."""
    return _Walk().data(value)


def compact(value: Any) -> str:
    return _encode(value)


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
        """Data of a request: values that JSON writes alike are alike, and the path of a file counts with the file."""
        kind = type(value)
        if kind is str:
            return text_data(value)
        if kind is float:
            if not math.isfinite(value):
                return tagged("float", repr(value))
            return int(value) if value.is_integer() else value
        if isinstance(value, dict | list | tuple | Set) and not isinstance(value, enum.Enum):
            if kind.__module__ in ("builtins", "collections") or not getattr(value, "__dict__", None):
                return self._container(value, self.data)
        elif (plain := numpy_scalar(value)) is not value:
            return self.data(plain)
        if isinstance(value, Path) and not value.is_file():
            raise Unkeyable(f"a request holds the path {str(value)!r}, which is not a file")
        return self.exact(value)

    def exact(self, value: Any) -> Any:
        """Data of a part of a function or an object, where the type of a number or a container may count."""
        kind = type(value)
        if kind is str or value is None or kind is bool:
            return value
        if kind is int:
            return value if value.bit_length() < 1024 else tagged("int", hex(value))
        if kind is float:
            return tagged("float", value.hex())
        if kind in (dict, list, set):
            return self._container(value, self.exact)
        if kind in (tuple, frozenset):
            return tagged(kind.__name__, self._container(value, self.exact))
        return self._other(value)

    def _container(self, value: Any, data: Callable[[Any], Any]) -> Any:
        if isinstance(value, Set):
            # each element by itself, since the order of a set differs between processes
            alone = _Walk.exact if data == self.exact else _Walk.data
            return tagged("set", sorted((alone(_Walk(), each) for each in value), key=compact))
        if not isinstance(value, dict):
            return [data(each) for each in value]
        if all(type(name) is str for name in value):
            found = {name: data(value[name]) for name in sorted(value)}
            return tagged("dict", found) if "$" in found else found
        return tagged("map", sorted(([data(name), data(each)] for name, each in value.items()), key=compact))

    def _other(self, value: Any) -> Any:
        """Data of a value that JSON lacks."""
        kind = type(value)
        match value:
            case bytes() | bytearray() | memoryview():
                return tagged("bytes", hashlib.sha256(bytes(value)).hexdigest())
            case Path() if value.is_file():
                return tagged("file", [value.name, file_digest(value)])
            case types.ModuleType():
                return self._module(value, frozenset())
            case types.FunctionType():
                return self._function(value)
            case types.MethodType():
                return self._method(value)
            case type():
                return self._class(value)
            case types.CodeType():
                return self._code(value)
            case staticmethod() | classmethod():
                return tagged(kind.__name__, self.exact(value.__func__))
            case property():
                return tagged("property", self.exact((value.fget, value.fset, value.fdel)))
            case functools.cached_property():
                return tagged("property", self.exact(value.func))
            case types.MappingProxyType():
                return self.exact(dict(value))
            case logging.Logger() | logging.LoggerAdapter():
                return tagged("inert", "")
        if kind.__module__.partition(".")[0] in _INERT:
            return tagged("inert", "")
        if kind is _CACHED:
            return tagged("cached", self.exact(value.__wrapped__))
        found = media_data(value, self.exact)
        return self._object(value) if found is None else found

    def _numbered(self, value: Any) -> Any:
        """Reference to an object that was seen before; None if it is new."""
        if (number := self._numbers.get(id(value))) is not None:
            return tagged("again", number)
        if len(self._numbers) >= MAX_OBJECTS:
            raise Unkeyable(f"a request holds an object of more than {MAX_OBJECTS:,} parts")
        self._numbers[id(value)] = len(self._numbers)
        self._alive.append(value)
        return None

    # -- code

    def _function(self, function: types.FunctionType) -> Any:
        code = function.__code__
        if (name := _library_name(function)) is not None:
            return tagged("name", [*name, self._code(code)])
        if (again := self._numbered(function)) is not None:
            return again
        with _part(f"the function {function.__qualname__!r}"):
            cells = [self._cell(cell) for cell in function.__closure__ or ()]
            return tagged("function", [function.__qualname__, self._code(code), self.exact(function.__defaults__),
                                       self.exact(function.__kwdefaults__), cells, self._globals(function),
                                       self.exact(vars(function))])  # fmt: skip

    def _cell(self, cell: types.CellType) -> Any:
        try:
            content = cell.cell_contents
        except ValueError:
            return tagged("cell", "empty")
        return self.exact(content)

    def _code(self, code: types.CodeType) -> Any:
        counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
        names = (code.co_name, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
        return tagged("code", [code.co_code.hex(), code.co_exceptiontable.hex(), self.exact((counts, names)),
                                [self.exact(each) for each in code.co_consts]])  # fmt: skip

    def _globals(self, function: types.FunctionType) -> dict[str, Any]:
        """Values of the globals that a function names, and files of the user's modules that it imports."""
        scope, found, codes = function.__globals__, dict[str, Any](), list(_codes(function.__code__))
        names = frozenset(name for code in codes for name in code.co_names)
        imported = {name for code in codes if _IMPORT in code.co_code[::2] for name in code.co_names}
        for name in sorted(names):
            if name in scope:
                with _part(f"the global {name!r}"):
                    value = scope[name]
                    is_module = isinstance(value, types.ModuleType)
                    found[name] = self._module(value, names) if is_module else self.exact(value)
            elif name in imported:
                for full in (name, f"{scope.get('__package__') or ''}.{name}"):
                    if (file := _module_file(full)) is not None:
                        found[f"import {full}"] = file_digest(file)
        return found

    def _module(self, module: types.ModuleType, names: Set[str]) -> Any:
        """A module by its name; one of the user's own also by its file and those attributes whose names are read."""
        if _is_library(module.__name__):
            return tagged("module", module.__name__)
        if (again := self._numbered(module)) is not None:
            return again
        content, file = vars(module), getattr(module, "__file__", None)
        used = {}
        for name in sorted(names & content.keys()):
            value = content[name]
            used[name] = self._module(value, names) if isinstance(value, types.ModuleType) else self.exact(value)
        return tagged("module", [module.__name__, file_digest(Path(file)) if file else "", used])

    def _method(self, method: types.MethodType) -> Any:
        """A method with its object; with those attributes alone that it reads, if it does nothing else with it."""
        function, owner = method.__func__, method.__self__
        attributes = _attributes_read(method)
        if attributes is None:
            return tagged("method", [self.exact(function), self.exact(owner)])
        found: dict[str, Any] = {}
        for name in sorted(attributes):
            with _part(f"the attribute {name!r} of a {type(owner).__qualname__}"):
                found[name] = self.exact(attributes[name])
        return tagged("reader", [self.exact(function), found])

    # -- objects

    def _class(self, kind: type) -> Any:
        if (library := _library_name(kind)) is not None:
            return tagged("name", library)
        if (again := self._numbered(kind)) is not None:
            return again
        content: dict[str, Any] = {}
        with _part(f"the class {kind.__qualname__!r}"):
            for name, value in vars(kind).items():
                if _is_content(name, value):
                    content[name] = self.exact(value)
            bases = [self.exact(base) for base in kind.__bases__]
            meta = None if type(kind) is type else self.exact(type(kind))
            return tagged("class", [kind.__qualname__, bases, meta, content])

    def _object(self, value: Any) -> Any:
        kind = type(value)
        refusal = Unkeyable(f"a request holds a value of type {kind.__qualname__}, which no key can represent")
        if kind is object:
            raise refusal
        if (again := self._numbered(value)) is not None:
            return again
        try:
            reducer = copyreg.dispatch_table.get(kind)
            reduced = reducer(value) if reducer is not None else value.__reduce_ex__(4)
        except _FAILURES:
            raise refusal from None
        if isinstance(reduced, str):
            module = getattr(value, "__module__", None) or kind.__module__
            if _named(module, reduced) is not value:
                raise refusal
            return tagged("name", [module, reduced])
        make, arguments, state, items, pairs = (*reduced, None, None, None)[:5]
        parts = [make, arguments, state, list(items) if items is not None else None,
                 list(pairs) if pairs is not None else None]  # fmt: skip
        self._alive.append(parts)
        return tagged("object", [self.exact(each) for each in parts])


@contextmanager
def _part(name: str) -> Iterator[None]:
    """Names a part of a function or an object in the sentence of Unkeyable, the innermost part only."""
    try:
        yield
    except Unkeyable as error:
        if _PART in str(error):
            raise
        raise Unkeyable(f"{error}{_PART}{name}") from None


def _is_content(name: str, value: Any) -> bool:
    """True for an attribute of a class that does not follow from its others: Python's own names count as functions and
    annotations only."""
    if name.startswith("__"):
        return name == "__annotations__" or isinstance(value, types.FunctionType | staticmethod | classmethod)
    return name != "_abc_impl" and not isinstance(value, _SLOTS)


def _attributes_read(method: types.MethodType) -> dict[str, Any] | None:
    """Attributes of its object that a method reads, also through other methods and properties of it. None if it uses
    the object in another way, so that all of it counts."""
    owner, found, waiting = method.__self__, dict[str, Any](), [method.__func__]
    kind, state = type(owner), getattr(owner, "__dict__", None)
    if not isinstance(state, dict) or hasattr(kind, "__getattr__"):
        return None
    while waiting:
        function = waiting.pop()
        names = _names_after_first(function.__code__) if isinstance(function, types.FunctionType) else None
        if names is None:
            return None
        for name in names - found.keys():
            value = inspect.getattr_static(kind, name, None)
            is_computed = isinstance(value, functools.cached_property)  # its value is in the object after the first use
            if not is_computed:
                value = inspect.getattr_static(owner, name, owner)
            if value is owner or isinstance(value, _SLOTS):  # missing, or in a slot
                return None
            found[name] = value
            inner = value.fget if isinstance(value, property) else value.func if is_computed else value
            if isinstance(inner, types.FunctionType) and (is_computed or name not in state):
                waiting.append(inner)
    return found


def _names_after_first(code: types.CodeType) -> Set[str] | None:
    """Attributes of its first argument that code reads; None if it does more with it than that."""
    if not code.co_argcount or code.co_varnames[0] in code.co_cellvars:
        return None
    owner, found = code.co_varnames[0], set[str]()
    steps = [each for step in dis.get_instructions(code) for each in _single(step)]
    for (name, value), (following, attribute) in pairwise(steps):
        if value == owner and "FAST" in name:
            if not name.startswith("LOAD_FAST") or following not in ("LOAD_ATTR", "LOAD_METHOD"):
                return None
            found.add(attribute)
    return found


def _single(step: dis.Instruction) -> Iterator[tuple[str, Any]]:
    """Names and arguments of the steps of which one is made: Python 3.13 joins pairs that load or store variables."""
    if isinstance(step.argval, tuple) and "FAST" in step.opname:
        return zip(re.findall("LOAD_FAST|STORE_FAST", step.opname), step.argval, strict=True)
    return iter([(step.opname, step.argval)])


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """A code object and those inside it."""
    yield code
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            yield from _codes(each)


def _library_name(value: Any) -> list[str] | None:
    """Module and name of what an installed package or the standard library defines under that name; None otherwise."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if isinstance(module, str) and isinstance(name, str) and _is_library(module) and _named(module, name) is value:
        return [module, name]
    return None


def _named(module: str, name: str) -> Any:
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def _is_library(name: str) -> bool:
    """True for a module of the standard library or of an installed package."""
    if name.partition(".")[0] in sys.stdlib_module_names and name != "__main__":
        return True
    file = getattr(sys.modules.get(name), "__file__", None)
    return isinstance(file, str) and not _PACKAGES.isdisjoint(Path(file).parts)


def _module_file(name: str) -> Path | None:
    """Source file of a module of the user's own; None for others."""
    parent = name.rpartition(".")[0]
    if not name or name.partition(".")[0] in sys.stdlib_module_names or (parent and parent not in sys.modules):
        return None
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):
        return None
    file = Path(spec.origin) if spec is not None and spec.has_location and spec.origin else None
    return file if file is not None and file.is_file() and _PACKAGES.isdisjoint(file.parts) else None


# Content of files, arrays, tensors and pictures ----------------------------------------------------------------------


def text_data(value: str) -> Any:
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


def numpy_scalar(value: Any) -> Any:
    """The Python number or text of a numpy scalar; other values as they are."""
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(value, numpy.generic) or isinstance(value, numpy.void | numpy.datetime64):
        return value
    plain = value.item()
    return value if type(plain) is type(value) else plain


def media_data(value: Any, exact: Callable[[Any], Any]) -> Any:
    """Data of an array, a tensor or a picture; None for other values. Their packages are not imported here."""
    numpy, torch, pictures = (sys.modules.get(name) for name in ("numpy", "torch", "PIL.Image"))
    try:
        if numpy is not None and (type(value) is numpy.ndarray or isinstance(value, numpy.generic)):
            about = [repr(value.dtype), value.dtype.str, list(value.shape), type(value).__name__]
            if value.dtype.hasobject:
                return tagged("array", [*about, exact(value.tolist())])
            return tagged("array", [*about, hashlib.sha256(numpy.ascontiguousarray(value).tobytes()).hexdigest()])
        if torch is not None and isinstance(value, torch.Tensor):
            flat = value.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
            about = [type(value).__name__, str(value.dtype), list(value.shape)]
            return tagged("tensor", [*about, hashlib.sha256(flat.view(torch.uint8).numpy()).hexdigest()])
        if pictures is not None and isinstance(value, pictures.Image):
            return tagged("picture", [_frame(value, exact) for _ in _frames(value)])
    except _FAILURES as error:
        if isinstance(error, Unkeyable):
            raise
        name = type(value).__qualname__
        raise Unkeyable(f"a request holds a value of type {name}, which cannot be read ({error})") from None
    return None


def _frames(picture: Any) -> Iterator[None]:
    """Each frame of a picture in turn; the picture then shows the frame that it showed before."""
    count = getattr(picture, "n_frames", 1)
    shown = picture.tell() if count > 1 else 0
    try:
        for number in range(count):
            if count > 1:
                picture.seek(number)
            yield
    finally:
        if count > 1:
            picture.seek(shown)


def _frame(picture: Any, exact: Callable[[Any], Any]) -> Any:
    data = picture.tobytes()
    palette = picture.palette.getdata() if picture.palette is not None else None
    return [picture.mode, list(picture.size), hashlib.sha256(data).hexdigest(), exact(palette),
            exact(picture.info), exact(dict(picture.getexif()))]  # fmt: skip
