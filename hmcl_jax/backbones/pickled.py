"""What a pickle describes, found without unpickling: nothing is imported, called or constructed.

Python's own unpickler is not used, however restricted: it sets attributes of whatever it was given,
and ends the whole process on a key of tuples nested deep enough. Here a small machine walks
through the opcodes. Plain values become what they are, tensors are only described, objects of a few
harmless classes become :data:`INERT`, and every other name is refused.
"""

import dataclasses
import pickletools
import re
from collections.abc import Callable, Iterable
from typing import Any


class PickleRefused(ValueError):
    """A pickle that names something other than plain data and tensors, or is damaged."""


@dataclasses.dataclass(frozen=True)
class Global:
    """A name that a pickle mentions."""

    module: str
    name: str

    def __str__(self) -> str:
        return shown(f"{self.module}.{self.name}")


@dataclasses.dataclass(frozen=True)
class StorageEntry:
    """Numbers in a member of the file.

    Attributes:
      kind: class of PyTorch that names their type, such as ``"FloatStorage"``.
      key: of the member.
      size: how many.
    """

    kind: str
    key: str
    size: int


@dataclasses.dataclass(frozen=True)
class TensorEntry:
    """A tensor as the pickle describes it; nothing about it has been checked.

    Attributes:
      storage: where its numbers are.
      offset: the first of them.
      shape: of the tensor.
      strides: in numbers, not bytes.
    """

    storage: Any
    offset: Any
    shape: Any
    strides: Any


class _Inert:
    """Stands for any object that is not of interest: it holds nothing."""

    def __repr__(self) -> str:
        return "INERT"


INERT = _Inert()

REBUILD = {
    ("torch._utils", "_rebuild_tensor_v2"): "tensor",
    ("torch._utils", "_rebuild_parameter"): "parameter",
    ("collections", "OrderedDict"): "dict",
    ("torch", "Size"): "tuple",
}
STORAGE = re.compile(r"[A-Z][A-Za-z0-9]{1,20}Storage")
DTYPE = re.compile(r"(float|bfloat|int|uint|complex)[0-9]{1,3}|bool|strided")
CLASS = re.compile(r"[A-Z][A-Za-z0-9]{0,60}")
# Configurations and states of optimizers lie beside the weights. Their classes only hold data: the
# packages' capitalised names are such, their functions are not (hydra.utils.instantiate runs code).
INERT_PACKAGES = ("omegaconf", "hydra.conf", "typing", "torch.optim")
INERT_NAMES = {
    "_codecs": {"encode"},  # how protocol 2 writes bytes
    "_operator": {"getitem"},  # of typing.Optional[int]
    "argparse": {"Namespace"},
    "builtins": {
        *("bool", "bytearray", "bytes", "complex", "dict", "float", "frozenset", "int", "list"),
        *("long", "object", "set", "slice", "str", "tuple", "type", "unicode"),
    },
    "collections": {"Counter", "defaultdict", "deque"},
    "copyreg": {"_reconstructor"},
    "datetime": {"date", "datetime", "timedelta"},
    "numpy": {"dtype", "ndarray"},
    "numpy._core.multiarray": {"_reconstruct", "scalar"},
    "pathlib": {"Path", "PosixPath", "PurePosixPath", "WindowsPath"},
    "torch": {"device"},
    "torch.serialization": {"_get_layout"},
}
# Other names of the same modules; protocol 2 writes those of Python 2.
ALIASES = {
    "__builtin__": "builtins",
    "copy_reg": "copyreg",
    "numpy.core.multiarray": "numpy._core.multiarray",
    "operator": "_operator",
}


def shown(value: Any) -> str:
    """A value of a file for a message: short and printable."""
    text = value if isinstance(value, str) else type(value).__name__
    text = text if len(text) <= 200 else f"{text[:200]}..."
    return text if text.isprintable() and text.isascii() else ascii(text)[1:-1]


def read_pickle(data: bytes) -> Any:
    """What a pickle describes.

    Args:
      data: the pickle, as PyTorch writes it.

    Returns:
      Plain values; :class:`TensorEntry` for tensors, :data:`INERT` for objects of other classes.

    Raises:
      PickleRefused: if it names anything that is not known to be harmless, or is damaged.
    """
    try:
        return _Machine().run(data)
    except PickleRefused:
        raise
    except Exception as error:  # whatever a damaged pickle provokes in the opcodes
        raise PickleRefused(f"it is damaged: {type(error).__name__}: {shown(str(error))}") from None


class _Machine:
    """The stack, the marks and the memo of one pickle."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marks: list[list[Any]] = []
        self.memo: dict[int, Any] = {}

    def run(self, data: bytes) -> Any:
        for opcode, argument, _ in pickletools.genops(data):
            name = opcode.name
            if name == "STOP":
                return self.stack.pop()
            if name in LITERALS:
                self.stack.append(argument)
            elif name in CONSTANTS:
                self.stack.append(CONSTANTS[name]())
            elif name in STEPS:
                STEPS[name](self, argument)
            elif name not in ("PROTO", "FRAME"):
                raise PickleRefused(f"opcode {name} has no place in a checkpoint")
        raise PickleRefused("it has no end")

    def mark(self, _: Any) -> None:
        self.marks.append(self.stack)
        self.stack = []

    def since_mark(self) -> list[Any]:
        found, self.stack = self.stack, self.marks.pop()
        return found

    def collect(self, make: Callable[[list[Any]], Any]) -> None:
        """One value of what lies above the last mark, in its place."""
        found = self.since_mark()
        self.stack.append(make(found))

    def drop_marked(self, _: Any) -> None:
        self.since_mark()

    def pop(self, _: Any) -> None:
        if self.stack:
            self.stack.pop()
        else:
            self.since_mark()

    def put(self, at: int) -> None:
        self.memo[at] = self.stack[-1]

    def memoize(self, _: Any) -> None:
        self.memo[len(self.memo)] = self.stack[-1]

    def get(self, at: int) -> None:
        self.stack.append(self.memo[at])

    def tuple_of(self, count: int) -> None:
        if len(self.stack) < count:
            raise PickleRefused("it is damaged: a tuple of nothing")
        at = len(self.stack) - count
        self.stack[at:] = [tuple(self.stack[at:])]

    def append(self, values: Iterable[Any]) -> None:
        if isinstance(self.stack[-1], list):
            self.stack[-1].extend(values)

    def set_items(self, flat: list[Any]) -> None:
        if isinstance(self.stack[-1], dict):
            self.stack[-1].update(_as_dict(flat))

    def one_item(self, _: Any) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self.set_items([key, value])

    def found_global(self, module: Any, name: Any) -> None:
        if not (isinstance(module, str) and isinstance(name, str)):
            raise PickleRefused("it is damaged: a name that is no text")
        found = Global(module, name)
        if not _is_known(found):
            raise PickleRefused(
                f"it names {found}, which is neither a tensor's nor known to be plain data; "
                "loading such a file can run code"
            )
        self.stack.append(found)

    def named(self, argument: str) -> None:
        module, name = argument.split(" ", 1)
        self.found_global(module, name)

    def named_on_stack(self, _: Any) -> None:
        name, module = self.stack.pop(), self.stack.pop()
        self.found_global(module, name)

    def named_instance(self, argument: str) -> None:
        arguments = self.since_mark()
        self.named(argument)
        self.make(self.stack.pop(), tuple(arguments))

    def marked_instance(self, _: Any) -> None:
        made, *arguments = self.since_mark()
        self.make(made, tuple(arguments))

    def reduce(self, _: Any) -> None:
        arguments, made = self.stack.pop(), self.stack.pop()
        self.make(made, arguments)

    def with_keywords(self, _: Any) -> None:
        self.stack.pop()
        self.reduce(None)

    def build(self, _: Any) -> None:
        self.stack.pop()  # the state of an object that stays as it is
        if not self.stack:
            raise PickleRefused("it is damaged: a state of nothing")

    def make(self, made: Any, arguments: Any) -> None:
        """What `made(*arguments)` stands for."""
        if not isinstance(made, Global) or not isinstance(arguments, tuple):
            raise PickleRefused(f"it calls {shown(made)}, which is not a name")
        kind = REBUILD.get((made.module, made.name))
        if kind == "tensor":
            storage, offset, shape, strides, *_ = arguments
            self.stack.append(TensorEntry(storage, offset, shape, strides))
        elif kind == "parameter":
            self.stack.append(arguments[0])
        elif kind == "dict":
            if arguments:  # it is filled later, item by item
                raise PickleRefused("it is damaged: an OrderedDict that is not empty at first")
            self.stack.append({})
        elif kind == "tuple":
            self.stack.append(arguments[0] if arguments else ())
        else:
            self.stack.append(INERT)

    def persistent(self, _: Any) -> None:
        found = self.stack.pop()
        what, kind, key, _, size = found
        named = isinstance(kind, Global) and kind.module in ("torch", "torch.cuda")
        if what != "storage" or not named or not isinstance(key, str):
            raise PickleRefused("it is damaged: a storage that is none")
        self.stack.append(StorageEntry(kind.name, key, size))


def _as_dict(flat: list[Any]) -> dict[Any, Any]:
    """Keys and values in turn as a dict; only items with names are of interest."""
    items = zip(flat[::2], flat[1::2], strict=True)
    return {key: value for key, value in items if isinstance(key, str)}


def _is_known(found: Global) -> bool:
    module, name = ALIASES.get(found.module, found.module), found.name
    if (module, name) in REBUILD or name in INERT_NAMES.get(module, ()):
        return True
    if module in ("torch", "torch.cuda"):
        return bool(STORAGE.fullmatch(name) or DTYPE.fullmatch(name))
    package = any(module == p or module.startswith(f"{p}.") for p in INERT_PACKAGES)
    return package and CLASS.fullmatch(name) is not None


LITERALS = {
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
    *("STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE"),
    *("BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"),
}
CONSTANTS: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_TUPLE": tuple,
    "EMPTY_LIST": list,
    "EMPTY_DICT": dict,
    "EMPTY_SET": lambda: INERT,
}


STEPS: dict[str, Callable[[_Machine, Any], None]] = {
    "MARK": _Machine.mark,
    "POP": _Machine.pop,
    "POP_MARK": _Machine.drop_marked,
    "DUP": lambda m, _: m.stack.append(m.stack[-1]),
    "PUT": _Machine.put,
    "BINPUT": _Machine.put,
    "LONG_BINPUT": _Machine.put,
    "MEMOIZE": _Machine.memoize,
    "GET": _Machine.get,
    "BINGET": _Machine.get,
    "LONG_BINGET": _Machine.get,
    "TUPLE1": lambda m, _: m.tuple_of(1),
    "TUPLE2": lambda m, _: m.tuple_of(2),
    "TUPLE3": lambda m, _: m.tuple_of(3),
    "TUPLE": lambda m, _: m.collect(tuple),
    "LIST": lambda m, _: m.collect(list),
    "DICT": lambda m, _: m.collect(_as_dict),
    "FROZENSET": lambda m, _: m.collect(lambda _: INERT),
    "APPEND": lambda m, _: m.append([m.stack.pop()]),
    "APPENDS": lambda m, _: m.append(m.since_mark()),
    "ADDITEMS": _Machine.drop_marked,
    "SETITEM": _Machine.one_item,
    "SETITEMS": lambda m, _: m.set_items(m.since_mark()),
    "GLOBAL": _Machine.named,
    "STACK_GLOBAL": _Machine.named_on_stack,
    "INST": _Machine.named_instance,
    "OBJ": _Machine.marked_instance,
    "NEWOBJ": _Machine.reduce,
    "NEWOBJ_EX": _Machine.with_keywords,
    "REDUCE": _Machine.reduce,
    "BUILD": _Machine.build,
    "BINPERSID": _Machine.persistent,
}
