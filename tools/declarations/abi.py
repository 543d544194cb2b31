"""Writes ``abi_check.c``: what the finished ctypes classes say, for the C compiler to confirm.

Of the same lines is the digest that tells a library apart from one that was built for other
declarations: it is compiled into ggml-base, and the loader compares it with that in ``abi.py``.

The generated modules are imported first (from memory, so that ``--check`` writes nothing), and
the sizes and offsets are read from the classes that Python will really use. None of the checks
makes code: function types are compared by ``_Generic``, which does not evaluate its operand, so
that the object links anywhere and works with ``dllimport``.
"""

from __future__ import annotations

import ctypes
import hashlib
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from . import model as m
from .render import NOTICE

PACKAGE = "llama_py._native"
HEAD = f"""\
/* {NOTICE}
 *
 * Compiled against the headers of llama.cpp: where the Python declarations and the headers
 * disagree about a size, an offset, a constant or a function's type, this does not compile.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
{{includes}}

#define SAME(what, condition) \\
    _Static_assert(condition, "this llama.cpp is not the declared one, see vendor/README.md: " what)
#define SIZE(type, size) SAME(#type, sizeof(type) == (size))
#define PLACE(type, name, at, size) \\
    SAME(#type "." #name " offset", offsetof(type, name) == (at)); \\
    SAME(#type "." #name " size", sizeof(((type *) 0)->name) == (size))
#define FIELD(type, name, c_type, at, size) \\
    PLACE(type, name, at, size); \\
    SAME(#type "." #name " type", _Generic(((type *) 0)->name, c_type: 1, default: 0))
/* 'enum x: 1' would define an enum of an underlying type, in MSVC and in C23 */
#define ENUM_FIELD(type, name, c_type, at, size) \\
    PLACE(type, name, at, size); \\
    SAME(#type "." #name " type", _Generic(&((type *) 0)->name, c_type *: 1, default: 0))
#define VALUE(name, value) SAME(#name, (name) == (value))
#define FUNCTION(name, ...) SAME(#name, _Generic(&name, __VA_ARGS__: 1, default: 0))
"""
TAIL = """
/* ---- what the loader compares: the digest of the lines above ---- */

#if defined(_WIN32)
__declspec(dllexport)
#elif defined(__GNUC__)
__attribute__((visibility("default")))
#endif
const char llama_py_abi[] = "{digest}";
"""
MODULE = f'''\
"""Which libraries these declarations are for: those with this digest in them (see ``loader``).

{NOTICE}
"""

DIGEST = "{{digest}}"
'''


def render_abi_check(
    modules: dict[str, m.Module], headers: dict[str, list[str]], sources: dict[str, str]
) -> tuple[str, str]:
    """The C file, from the parsed headers and the text of the runtime modules, and its digest."""
    lines: list[str] = []
    for name, namespace in _execute(sources).items():
        lines += ["", f"/* ---- {name} ---- */", ""]
        lines += _module_checks(modules[name], namespace)
    includes = "\n".join(f'#include "{h}"' for names in headers.values() for h in names)
    checks = "\n".join(lines) + "\n"
    digest = hashlib.sha256(checks.encode()).hexdigest()[:16]
    head, tail = HEAD.format(includes=includes), TAIL.format(digest=digest)
    return head.replace("{{", "{") + checks + tail, digest


def _execute(sources: dict[str, str]) -> dict[str, ModuleType]:
    """Import module texts as if they were the package's files already."""
    saved = {name: sys.modules.get(f"{PACKAGE}.{name}") for name in sources}
    loaded = {}
    try:
        for name, text in sources.items():
            module = ModuleType(f"{PACKAGE}.{name}")
            module.__package__ = PACKAGE
            sys.modules[module.__name__] = loaded[name] = module
            exec(compile(text, f"<{name}>", "exec"), module.__dict__)
    finally:
        for name, old in saved.items():
            del sys.modules[f"{PACKAGE}.{name}"]
            if old is not None:
                sys.modules[f"{PACKAGE}.{name}"] = old
    return loaded


def _module_checks(module: m.Module, namespace: ModuleType) -> Iterator[str]:
    values = [*module.constants.items(), *(v for e in module.enums.values() for v in e.items())]
    yield from (f"VALUE({name}, {_c_int(v)});" for name, v in values if isinstance(v, int))
    for name in filter(None, module.enums):
        yield f"SIZE(enum {name}, {ctypes.sizeof(ctypes.c_int)});"
    records = {record.name: record for record in module.records}
    for record in filter(lambda r: r.tag, module.records):
        python = getattr(namespace, record.name)
        yield f"SIZE({record.tag}, {ctypes.sizeof(python)});"
        for path, c_type, offset, size in _fields(record, python, records):
            macro = "ENUM_FIELD" if c_type.startswith("enum ") else "FIELD"
            yield f"{macro}({record.tag}, {path}, {c_type}, {offset}, {size});"
    for function in module.functions:
        yield f"FUNCTION({function.name}, {function.c_type});"


def _fields(
    record: m.RecordDecl, python: type[Any], records: dict[str, m.RecordDecl]
) -> Iterator[tuple[str, str, int, int]]:
    """Path, C type, offset and size of each field, those of unnamed inner types included."""
    for member in record.fields:
        place = getattr(python, member.py_name)
        if member.name not in record.inline:
            yield member.name, member.c_type, place.offset, place.size
            continue
        inner = dict(python._fields_)[member.py_name]
        prefix = "" if member.name in record.anonymous else f"{member.name}."
        for path, c_type, offset, size in _fields(records[inner.__name__], inner, records):
            yield prefix + path, c_type, place.offset + offset, size


def _c_int(value: int) -> str:
    """INT_MIN has no literal in C."""
    return f"({value + 1} - 1)" if value == -(2**31) else str(value)
