"""How each C type is written in Python: for ctypes at run time, and in a stub for a type checker.

The rules, which ``types.py`` explains to the reader of the generated modules:

* a pointer to a hidden struct is a class of its own, everywhere;
* ``const char *`` is ``bytes``; ``char *`` is a buffer;
* a pointer parameter to numbers takes an array, a pointer, ``byref``, or a plain address;
* a pointer parameter to a visible struct takes only that struct's pointers.
"""

from __future__ import annotations

from . import model as m

FLAT = (m.Scalar, m.Void, m.Char, m.Enum)


def runtime(t: m.CType) -> str:
    """The ctypes class of a field, a result, or an item of an array."""
    match t:
        case m.Scalar():
            return t.ctype
        case m.Void():
            return "None"
        case m.Char():
            return "c_char"
        case m.Enum():
            return "c_int"
        case m.Record() | m.Handle() | m.Callback():
            return t.name
        case m.Pointer(to=m.Void()):
            return "c_void_p"
        case m.Pointer(to=m.Char(), const=True):
            return "c_char_p"
        case m.Pointer():
            return f"POINTER({runtime(t.to)})"
        case m.Array():
            return f"{runtime(t.of)} * {t.size}"


def runtime_param(t: m.CType) -> str:
    """The ctypes class that checks an argument."""
    match t:
        case m.Pointer(to=m.Char(), const=True):
            return "c_char_p"
        case m.Pointer(to=to) if isinstance(to, FLAT):
            return "c_void_p"
    return runtime(t)


def item(t: m.CType) -> str:
    """The stub's name of the ctypes class itself: what a pointer or an array is made of."""
    match t:
        case m.Scalar():
            return t.ctype
        case m.Void():
            return "c_void_p"
        case m.Char():
            return "c_char"
        case m.Enum():
            return "c_int"
        case m.Record() | m.Handle() | m.Callback():
            return t.name
        case m.Pointer(to=m.Void()):
            return "c_void_p"
        case m.Pointer(to=m.Char(), const=True):
            return "c_char_p"
        case m.Pointer():
            return f"_Pointer[{item(t.to)}]"
        case m.Array():
            return f"Array[{item(t.of)}]"


def value(t: m.CType) -> str:
    """The stub type of a result, of a field that is read, or of a callback's argument."""
    match t:
        case m.Scalar():
            return t.py
        case m.Void():
            return "None"
        case m.Char():
            return "bytes"
        case m.Enum():
            return "int"
        case m.Pointer(to=m.Void()):
            return "int | None"
        case m.Pointer(to=m.Char(), const=True):
            return "bytes | None"
        case m.Array(of=m.Char()):
            return "bytes"
        case m.Pointer():
            return f"Ptr[{item(t.to)}]"
    return item(t)


def param(t: m.CType) -> str:
    """The stub type of an argument."""
    match t:
        case m.Pointer(to=m.Char(), const=True):
            return "Text"
        case m.Pointer(to=m.Void(), const=const):
            return "ConstAddress" if const else "Address"
        case m.Pointer(to=to, const=const) if isinstance(to, FLAT):
            return f"{'ConstBuffer' if const else 'Buffer'}[{item(to)}]"
        case m.Pointer(to=to):
            return f"Ref[{item(to)}]"
    return value(t)


def field(t: m.CType) -> str:
    """The stub type of a struct's field."""
    match t:
        case m.Pointer(to=m.Void()) | m.Pointer(to=m.Char(), const=True):
            return f"Field[{value(t)}, {value(t)}]"
        case m.Handle():
            return f"Field[{t.name}, {t.name} | int | None]"
        case m.Pointer():
            return f"Field[{value(t)}, {item(t)} | Array[{item(t.to)}] | None]"
        case m.Scalar(py="float"):
            return "Field[float, float]"
    return f"Field[{value(t)}, {value(t)}]"


def callback_result(t: m.CType) -> m.CType:
    """What a callback returns: of a pointer, its address, which is all that ctypes can convert."""
    return m.Pointer(m.Void()) if isinstance(t, m.Handle | m.Pointer) else t
