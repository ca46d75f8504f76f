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
from pathlib import Path, PurePath
from typing import Any, TypeAlias

Exact: TypeAlias = Callable[[Any], Any]
"""Maker of canonical data of any value, such as the palette of a picture."""
MEDIA = (
    ".png", ".jpg", ".jpeg", ".gif", ".webp", ".bmp", ".tif", ".tiff", ".mp4", ".avi", ".mov", ".mkv", ".webm", ".m4v",
    ".wav", ".mp3", ".flac", ".ogg", ".m4a", ".pdf", ".npy", ".npz", ".pt", ".safetensors",
)  # fmt: skip
"""Endings of a text that is the path of a file, if there is such a file: then its content counts too."""
_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False).encode
MAX_OBJECTS = 100_000
"""Maximum number of functions, classes and objects that one value may consist of."""
_GLOBAL_LOADS = frozenset(("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"))
_PACKAGES = frozenset(("site-packages", "dist-packages"))
_NOT_CONTENT = frozenset(
    ("__dict__", "__weakref__", "__slotnames__", "__module__", "__qualname__", "__firstlineno__",
     "__static_attributes__", "_abc_impl",
     "__dataclass_params__", "__dataclass_fields__", "__pydantic_core_schema__", "__pydantic_validator__",
     "__pydantic_serializer__", "__pydantic_complete__", "__pydantic_decorators__", "__pydantic_generic_metadata__",
     "__pydantic_parent_namespace__", "__pydantic_fields_complete__", "__pydantic_setattr_handlers__",
     "__annotations_cache__", "__signature__", "__class_vars__")
)  # fmt: skip
"""Attributes of a class that follow from its others, or say where it stands."""
_LOGGERS = frozenset(("loguru", "structlog"))
_CACHED = type(functools.lru_cache(len))
_PART = "; it is in "
_DESCRIPTORS = (types.MemberDescriptorType, types.GetSetDescriptorType)


FAILURES = (TypeError, ValueError, AttributeError, RuntimeError, NotImplementedError, OSError, KeyError, IndexError)
"""Errors of objects that cannot say what they are made of."""


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


class _Walk:
    """Walk through one value. Objects that occur twice, or contain themselves, are numbered by their first place."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._alive: list[Any] = []
        """Numbered objects, which must outlive their addresses."""

    # -- data

    def data(self, value: Any) -> Any:
        """Data of a request: values that JSON writes alike are alike."""
        kind = type(value)
        if kind is str:
            return text_data(value)
        if value is None or kind is bool:
            return value
        if kind is int:
            return value if value.bit_length() < 1024 else tagged("int", hex(value))
        if kind is float:
            if not math.isfinite(value):
                return tagged("float", repr(value))
            return int(value) if value.is_integer() else value
        if isinstance(value, dict | list | tuple | Set) and not isinstance(value, enum.Enum):
            if kind.__module__ in ("builtins", "collections") or not _state_of(value):
                return self._container(value, self.data)
        elif (plain := numpy_scalar(value)) is not value:
            return self.data(plain)
        if isinstance(value, Path) and not value.is_file():
            raise Unkeyable(f"a request holds the path {str(value)!r}, which is not a file")
        return self._other(value)

    def exact(self, value: Any) -> Any:
        """Data of a part of a function or an object, where the type of a number or a container may count."""
        kind = type(value)
        if kind is str or value is None or kind is bool:
            return value
        if kind is int:
            return self.data(value)
        if kind is float:
            return tagged("float", value.hex())
        if kind in (dict, list, set):
            return self._container(value, self.exact)
        if kind in (tuple, frozenset):
            return tagged(kind.__name__, self._container(value, self.exact))
        return self._other(value)

    def _container(self, value: Any, data: Any) -> Any:
        if isinstance(value, Set):
            # each element by itself, since the order of a set differs between processes
            each_alone = _Walk().exact if data == self.exact else _Walk().data
            return tagged("set", sorted((each_alone(each) for each in value), key=compact))
        if not isinstance(value, dict):
            return [data(each) for each in value]
        if all(type(name) is str for name in value):
            found = {name: data(value[name]) for name in sorted(value)}
            return tagged("dict", found) if "$" in found else found
        return tagged("map", sorted(([data(name), data(each)] for name, each in value.items()), key=compact))

    def _other(self, value: Any) -> Any:
        """Data of a value that JSON lacks."""
        kind = type(value)
        if isinstance(value, enum.Enum):
            members = [[each.name, self.exact(each.value)] for each in kind]
            return tagged("enum", [kind.__module__, kind.__qualname__, members, value.name, self.exact(value.value)])
        if isinstance(value, bytes | bytearray | memoryview):
            return tagged("bytes", hashlib.sha256(bytes(value)).hexdigest())
        if kind is complex:
            return tagged("complex", repr(value))
        if isinstance(value, PurePath):
            return path_data(value)
        if (found := media_data(value, self.exact)) is not None:
            return found
        if isinstance(value, types.ModuleType):
            return self._module(value, frozenset())
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, types.MethodType):
            return self._method(value)
        if isinstance(value, type):
            return self._class(value)
        if isinstance(value, types.CodeType):
            return self._code(value)
        if isinstance(value, types.MappingProxyType):
            return self._container(dict(value), self.exact)
        if isinstance(value, logging.Logger | logging.LoggerAdapter) or kind.__module__.split(".")[0] in _LOGGERS:
            return tagged("logger", "")  # it writes, and changes no answer
        if kind.__module__ == "_thread":
            return tagged("lock", "")
        if kind is _CACHED:
            return tagged("cached", self.exact(value.__wrapped__))
        return self._object(value)

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
        name = _library_name(function)
        if name is not None:
            return tagged("name", [*name, self._code(function.__code__)])
        if (again := self._numbered(function)) is not None:
            return again
        code, defaults = function.__code__, (function.__defaults__, function.__kwdefaults__)
        with _part(f"the function {function.__qualname__!r}"):
            cells = [self._cell(cell) for cell in function.__closure__ or ()]
            return tagged("function", [function.__qualname__, self._code(code), self.exact(defaults), cells,
                                        self._globals(function), self.exact(vars(function))])  # fmt: skip

    def _method(self, method: types.MethodType) -> Any:
        """A method with its object; with those attributes alone that it reads, if it does nothing else with it."""
        function, owner = method.__func__, method.__self__
        attributes: dict[str, Any] = {}
        if not isinstance(function, types.FunctionType) or not _collect(function, owner, attributes):
            return tagged("method", [self.exact(function), self.exact(owner)])
        found: dict[str, Any] = {}
        for name in sorted(attributes):
            with _part(f"the attribute {name!r} of a {type(owner).__qualname__}"):
                found[name] = self._attribute(attributes[name])
        return tagged("reader", [self._function(function), found])

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

    def _globals(self, function: types.FunctionType) -> Any:
        """Values of the globals that a function reads, and files of the modules that it imports."""
        codes = list(_codes(function.__code__))
        loaded, imported = set[str](), set[str]()
        for code in codes:
            for step in dis.get_instructions(code):
                if step.opname in _GLOBAL_LOADS:
                    loaded.add(step.argval)
                elif step.opname == "IMPORT_NAME":
                    imported.add(step.argval)
        names = frozenset(name for code in codes for name in code.co_names)
        found: dict[str, Any] = {}
        for name in sorted(loaded):
            if name in function.__globals__:
                value = function.__globals__[name]
                with _part(f"the global {name!r}"):
                    is_module = isinstance(value, types.ModuleType)
                    found[name] = self._module(value, names) if is_module else self.exact(value)
        package = function.__globals__.get("__package__") or ""
        for name in sorted(imported):
            for full in (name, f"{package}.{name}"):
                if (file := _module_file(full)) is not None:
                    found[f"import {full}"] = file_digest(file)
        return found

    def _module(self, module: types.ModuleType, names: Set[str]) -> Any:
        """A module by its name; one of the user's own also by its file and those attributes whose names are read."""
        if _is_library(module.__name__):
            return tagged("module", module.__name__)
        content = vars(module)
        used = {}
        for name in sorted(names & content.keys()):
            value = content[name]
            if isinstance(value, types.ModuleType):
                if (again := self._numbered(value)) is None:
                    used[name] = self._module(value, names)
                else:
                    used[name] = again
            else:
                used[name] = self.exact(value)
        file = getattr(module, "__file__", None)
        return tagged("module", [module.__name__, file_digest(Path(file)) if file else "", used])

    # -- objects

    def _class(self, kind: type) -> Any:
        if (library := _library_name(kind)) is not None:
            return tagged("name", library)
        if (again := self._numbered(kind)) is not None:
            return again
        content: dict[str, Any] = {}
        with _part(f"the class {kind.__qualname__!r}"):
            for name, value in vars(kind).items():
                if name not in _NOT_CONTENT and not isinstance(value, _DESCRIPTORS):
                    content[name] = self._attribute(value)
            bases = [self.exact(base) for base in kind.__bases__]
            meta = None if type(kind) is type else self.exact(type(kind))
            return tagged("class", [kind.__qualname__, bases, meta, content])

    def _attribute(self, value: Any) -> Any:
        if isinstance(value, staticmethod | classmethod):
            return tagged(type(value).__name__, self.exact(value.__func__))
        if isinstance(value, property):
            return tagged("property", [self.exact(each) for each in (value.fget, value.fset, value.fdel)])
        if isinstance(value, functools.cached_property):
            return tagged("property", self.exact(value.func))
        return self.exact(value)

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
        except FAILURES:
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


def _state_of(value: Any) -> Any:
    """Attributes that a container of an own class has beside its items."""
    return getattr(value, "__dict__", None)


def _collect(function: types.FunctionType, owner: Any, attributes: dict[str, Any]) -> bool:
    """Collects the attributes of its object that a method reads, also through other methods and properties of it.

    False if the object is used in another way, so that all of it counts.
    """
    names = _attributes_read(function.__code__)
    state = getattr(owner, "__dict__", None)
    if names is None or not isinstance(state, dict) or hasattr(type(owner), "__getattr__"):
        return False
    for name in names - attributes.keys():
        value = inspect.getattr_static(type(owner), name, None)
        is_computed = isinstance(value, functools.cached_property)  # its value appears in the object at the first use
        if not is_computed:
            value = inspect.getattr_static(owner, name, owner)
        if value is owner or type(value) in _DESCRIPTORS:  # missing, or in a slot
            return False
        attributes[name] = value
        inner = value.fget if isinstance(value, property) else value.func if is_computed else value
        if (
            (is_computed or name not in state)
            and isinstance(inner, types.FunctionType)
            and not _collect(inner, owner, attributes)
        ):
            return False
    return True


def _attributes_read(code: types.CodeType) -> Set[str] | None:
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


# Content of files, arrays, tensors and pictures, whose packages are not imported here --------------------------------


def tagged(kind: str, value: Any) -> dict[str, Any]:
    return {"$": kind, "v": value}


def text_data(value: str) -> Any:
    """A text. The path of a picture, a video and so on, by its ending, counts with the content of the file."""
    if value[-12:].lower().endswith(MEDIA) and len(value) < 4096 and "\0" not in value:
        file = value.removeprefix("file://")
        if os.path.isfile(file):
            return tagged("path", [value, file_digest(Path(file))])
    return value


def path_data(path: PurePath) -> Any:
    """A path: of a file, its name and the content; of anything else, the path itself."""
    if isinstance(path, Path) and path.is_file():
        return tagged("file", [path.name, file_digest(path)])
    return tagged("place", str(path))


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


def media_data(value: Any, exact: Exact) -> Any:
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
    except FAILURES as error:
        if isinstance(error, Unkeyable):
            raise
        name = type(value).__qualname__
        raise Unkeyable(f"a request holds a value of type {name}, which cannot be read ({error})") from None
    return None


def _frames(picture: Any) -> Iterator[None]:
    """Each frame of a picture in turn; the picture then shows the frame that it showed before."""
    count = getattr(picture, "n_frames", 1)
    if count == 1:
        yield
        return
    shown = picture.tell()
    try:
        for number in range(count):
            picture.seek(number)
            yield
    finally:
        picture.seek(shown)


def _frame(picture: Any, exact: Exact) -> Any:
    data = picture.tobytes()
    palette = picture.palette.getdata() if picture.palette is not None else None
    return [picture.mode, list(picture.size), hashlib.sha256(data).hexdigest(), exact(palette),
            exact(picture.info), exact(dict(picture.getexif()))]  # fmt: skip
