"""Reads the C headers with libclang into :mod:`.model`.

The result must not depend on the machine that generates, so nothing of the machine is read: the
target is fixed and the few names that the headers need from the C library are given here.
"""

from __future__ import annotations

import ast
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from clang import cindex
from clang.cindex import Cursor, CursorKind, StorageClass, TypeKind

from . import model as m

SCALARS = {
    **{f"{u}int{n}_t": m.Scalar(f"c_{u}int{n}", "int") for u in ("", "u") for n in (8, 16, 32, 64)},
    "size_t": m.Scalar("c_size_t", "int"),
    "ssize_t": m.Scalar("c_ssize_t", "int"),
    "ptrdiff_t": m.Scalar("c_ssize_t", "int"),
    "intptr_t": m.Scalar("c_ssize_t", "int"),
    "uintptr_t": m.Scalar("c_size_t", "int"),
}
BUILTIN: dict[TypeKind, m.CType] = {
    TypeKind.BOOL: m.Scalar("c_bool", "bool"),
    TypeKind.INT: m.Scalar("c_int", "int"),
    TypeKind.UINT: m.Scalar("c_uint", "int"),
    TypeKind.LONGLONG: m.Scalar("c_longlong", "int"),
    TypeKind.ULONGLONG: m.Scalar("c_ulonglong", "int"),
    TypeKind.SHORT: m.Scalar("c_short", "int"),
    TypeKind.USHORT: m.Scalar("c_ushort", "int"),
    TypeKind.UCHAR: m.Scalar("c_uint8", "int"),
    TypeKind.SCHAR: m.Scalar("c_int8", "int"),
    TypeKind.FLOAT: m.Scalar("c_float", "float"),
    TypeKind.DOUBLE: m.Scalar("c_double", "float"),
    TypeKind.CHAR_S: m.Char(),
    TypeKind.VOID: m.Void(),
}
ARRAYS = (TypeKind.CONSTANTARRAY, TypeKind.INCOMPLETEARRAY)
LIBC = {
    "stdint.h": "\n".join(
        f"typedef {c} int{n}_t; typedef unsigned {c} uint{n}_t;"
        for n, c in ((8, "char"), (16, "short"), (32, "int"), (64, "long long"))
    ).replace("typedef char", "typedef signed char")
    + "\ntypedef long long intptr_t; typedef unsigned long long uintptr_t;"
    + "\n#define UINTPTR_MAX 0xFFFFFFFFFFFFFFFF\n",
    "stddef.h": "typedef __SIZE_TYPE__ size_t; typedef __PTRDIFF_TYPE__ ptrdiff_t;\n"
    "#define NULL ((void *) 0)\n#define offsetof(type, member) __builtin_offsetof(type, member)\n",
    "stdbool.h": "#define bool _Bool\n#define true 1\n#define false 0\n",
    "stdio.h": "#include <stddef.h>\ntypedef struct LIBC_FILE FILE;\n",
}


class ParseError(Exception):
    """The headers hold something that the generator cannot declare."""


def parse(
    headers: dict[str, list[str]], include: list[Path], hidden: frozenset[str]
) -> dict[str, m.Module]:
    """Read ``headers`` (module name -> header names), found along ``include``.

    Pointers to the structs in ``hidden`` count as handles, although the headers show the fields.
    """
    text = "".join(f'#include "{name}"\n' for names in headers.values() for name in names)
    unit = translate(text, include)
    errors = errors_of(unit)
    if errors:
        raise ParseError("the headers do not parse:\n" + "\n".join(errors[:10]))
    return _Reader(unit, headers, hidden).read()


def translate(
    text: str, include: list[Path], target: str = "x86_64-unknown-linux-gnu"
) -> cindex.TranslationUnit:
    """Let libclang read C text for a platform, without that platform's own headers."""
    with tempfile.TemporaryDirectory() as libc:
        for name, content in LIBC.items():
            Path(libc, name).write_text(content, encoding="utf-8")
        return cindex.Index.create().parse(
            "all.h.c",
            args=["-xc", "-std=c11", f"--target={target}", "-nostdinc"]
            + [f"-I{path}" for path in (libc, *include)],
            unsaved_files=[("all.h.c", text)],
            options=cindex.TranslationUnit.PARSE_DETAILED_PROCESSING_RECORD,
        )


def errors_of(unit: cindex.TranslationUnit) -> list[str]:
    """What libclang could not accept."""
    return [str(d) for d in unit.diagnostics if d.severity >= cindex.Diagnostic.Error]


class _Reader:
    """One walk over a translation unit."""

    def __init__(
        self, unit: cindex.TranslationUnit, headers: dict[str, list[str]], hidden: frozenset[str]
    ) -> None:
        self.unit = unit
        self.hidden = hidden
        self.modules = {name: m.Module(name) for name in headers}
        self.owner = {header: name for name, names in headers.items() for header in names}
        self.handle_names = dict(self._pointer_typedefs())
        self.functions = {c.spelling for c, _ in self._cursors(CursorKind.FUNCTION_DECL)}
        self.seen: set[str] = set()

    def read(self) -> dict[str, m.Module]:
        for cursor, module in self._cursors():
            reader = getattr(self, f"_read_{cursor.kind.name.lower()}", None)
            if reader is not None:
                reader(cursor, module)
        return self.modules

    def _cursors(self, kind: CursorKind | None = None) -> Iterator[tuple[Cursor, m.Module]]:
        for cursor in self.unit.cursor.get_children():
            file = cursor.location.file
            owner = self.owner.get(Path(file.name).name) if file else None
            if owner is not None and (kind is None or cursor.kind == kind):
                yield cursor, self.modules[owner]

    def _pointer_typedefs(self) -> Iterator[tuple[str, str]]:
        """``typedef struct X * Y`` gives the pointer to a hidden struct its name: Y."""
        for cursor, _ in self._cursors(CursorKind.TYPEDEF_DECL):
            target = cursor.underlying_typedef_type.get_canonical()
            if target.kind == TypeKind.POINTER and _is_hidden(target.get_pointee()):
                yield target.get_pointee().get_declaration().spelling, cursor.spelling

    # ---- declarations -------------------------------------------------------------------

    def _read_macro_definition(self, cursor: Cursor, module: m.Module) -> None:
        tokens = [t.spelling for t in cursor.get_tokens()][1:]
        if not tokens:
            return
        known = {k: v for other in self.modules.values() for k, v in other.constants.items()}
        value = evaluate(tokens, known)
        if value is not None:
            module.constants[cursor.spelling] = value

    def _read_enum_decl(self, cursor: Cursor, module: m.Module) -> None:
        if cursor.is_definition():
            name = "" if cursor.is_anonymous() else cursor.spelling
            values = {c.spelling: c.enum_value for c in cursor.get_children()}
            module.enums.setdefault(name, {}).update(values)

    def _read_struct_decl(self, cursor: Cursor, module: m.Module) -> None:
        if cursor.spelling in self.seen or cursor.is_anonymous():
            return
        if _is_hidden(cursor.type):
            self.seen.add(cursor.spelling)
            self._add_handle(cursor.spelling, module)
        elif cursor.is_definition():
            self.seen.add(cursor.spelling)
            name = self._record_name(cursor.spelling)
            if cursor.spelling in self.hidden:
                self._add_handle(cursor.spelling, module)
            self._add_record(cursor, name, cursor.type.spelling, module)

    def _add_handle(self, tag: str, module: m.Module) -> None:
        if not any(h.tag == tag for other in self.modules.values() for h in other.handles):
            module.handles.append(m.HandleDecl(self._handle_name(tag), tag))

    def _add_record(self, cursor: Cursor, name: str, tag: str, module: m.Module) -> None:
        record = m.RecordDecl(name, tag, is_union=cursor.kind == CursorKind.UNION_DECL)
        for child in cursor.type.get_fields():
            declaration = child.type.get_declaration()
            if declaration.is_anonymous():
                inner = self._inline_name(child, record)
                self._add_record(declaration, f"{name}_{inner}", "", module)
                record.fields.append(m.Param(inner, m.Record(f"{name}_{inner}")))
            else:
                record.fields.append(self._field(child, name, module))
        module.records.append(record)

    @staticmethod
    def _inline_name(field: Cursor, record: m.RecordDecl) -> str:
        name = str(field.spelling)
        if not name.isidentifier():
            name = f"u{len(record.anonymous)}"
            record.anonymous.append(name)
        record.inline.append(name)
        return name

    def _field(self, cursor: Cursor, record: str, module: m.Module) -> m.Param:
        c_type = _c_argument(cursor.type)
        if _is_function_pointer(cursor.type):
            callback = self._add_callback(
                cursor, f"{record}_{cursor.spelling}", cursor.type, module
            )
            return m.Param(cursor.spelling, callback, c_type)
        return m.Param(cursor.spelling, self._type(cursor.type), c_type)

    def _read_typedef_decl(self, cursor: Cursor, module: m.Module) -> None:
        target, name = cursor.underlying_typedef_type, cursor.spelling
        canonical = target.get_canonical()
        if _is_function_pointer(canonical):
            self._add_callback(cursor, name, target, module)
        elif canonical.kind == TypeKind.RECORD and canonical.get_declaration().is_anonymous():
            self._add_record(canonical.get_declaration(), name, name, module)
        elif canonical.kind == TypeKind.RECORD and _is_hidden(canonical):
            return
        elif canonical.kind == TypeKind.POINTER and _is_hidden(canonical.get_pointee()):
            self._add_handle(canonical.get_pointee().get_declaration().spelling, module)
        elif canonical.kind not in (TypeKind.RECORD, TypeKind.ENUM):
            module.aliases.append(m.Alias(name, self._type(target)))

    def _add_callback(
        self, cursor: Cursor, name: str, pointer: cindex.Type, module: m.Module
    ) -> m.Callback:
        """Declare a function pointer type: a typedef, or the type of a struct's field."""
        function = pointer.get_pointee()  # not the canonical type, which loses 'int32_t'
        names = [c.spelling for c in cursor.get_children() if c.kind == CursorKind.PARM_DECL]
        params = tuple(
            m.Param(n, self._argument(t))
            for n, t in zip(names, function.argument_types(), strict=True)
        )
        module.callbacks.append(m.CallbackDecl(name, self._type(function.get_result()), params))
        return m.Callback(name)

    def _read_function_decl(self, cursor: Cursor, module: m.Module) -> None:
        name = cursor.spelling
        if name in self.seen:
            return
        self.seen.add(name)
        reason = _why_skipped(cursor)
        if reason:
            module.skipped.append((name, reason))
            return
        arguments = list(cursor.get_arguments())
        params = tuple(
            m.Param(a.spelling or f"arg{i}", self._argument(a.type))
            for i, a in enumerate(arguments)
        )
        spelled = ", ".join(_c_argument(a.type) for a in arguments) or "void"
        c_type = f"{cursor.result_type.spelling} (*)({spelled})"
        result = self._type(cursor.result_type)
        module.functions.append(m.FunctionDecl(name, result, params, c_type))

    # ---- types --------------------------------------------------------------------------

    def _argument(self, t: cindex.Type) -> m.CType:
        if t.kind in ARRAYS:
            return m.Pointer(self._type(t.element_type), t.element_type.is_const_qualified())
        return self._type(t)

    def _type(self, t: cindex.Type) -> m.CType:
        if t.kind == TypeKind.ELABORATED:
            return self._type(t.get_named_type())
        if t.kind == TypeKind.TYPEDEF:
            return self._typedef(t)
        if t.kind == TypeKind.POINTER:
            return self._pointer(t)
        if t.kind == TypeKind.CONSTANTARRAY:
            return m.Array(self._type(t.element_type), t.element_count)
        if t.kind == TypeKind.ENUM:
            return m.Enum(t.get_declaration().spelling)
        if t.kind == TypeKind.RECORD:
            return m.Record(self._record_name(t.get_declaration().spelling))
        if t.kind in BUILTIN:
            return BUILTIN[t.kind]
        raise ParseError(f"no rule for the C type '{t.spelling}' ({t.kind})")

    def _typedef(self, t: cindex.Type) -> m.CType:
        declaration = t.get_declaration()
        if declaration.spelling in SCALARS:
            return SCALARS[declaration.spelling]
        if _is_function_pointer(t.get_canonical()):
            return m.Callback(declaration.spelling)
        if t.get_canonical().get_declaration().is_anonymous():
            return m.Record(declaration.spelling)
        return self._type(declaration.underlying_typedef_type)

    def _pointer(self, t: cindex.Type) -> m.CType:
        pointee = t.get_pointee()
        tag = pointee.get_canonical().get_declaration().spelling
        if tag in self.hidden or _is_hidden(pointee):
            return m.Pointer(m.Void()) if tag == "LIBC_FILE" else m.Handle(self._handle_name(tag))
        if pointee.get_canonical().kind == TypeKind.FUNCTIONPROTO:
            raise ParseError(f"a function pointer needs a typedef: '{t.spelling}'")
        return m.Pointer(self._type(pointee), pointee.is_const_qualified())

    def _handle_name(self, tag: str) -> str:
        return self.handle_names.get(tag, f"{tag}_p")

    def _record_name(self, tag: str) -> str:
        """C keeps structs and functions apart; Python does not, and the function wins."""
        return f"{tag}_s" if tag in self.functions else tag


def _is_hidden(t: cindex.Type) -> bool:
    canonical = t.get_canonical()
    return bool(canonical.kind == TypeKind.RECORD and canonical.get_size() < 0)


def _is_function_pointer(t: cindex.Type) -> bool:
    function = t.get_pointee().get_canonical() if t.kind == TypeKind.POINTER else t
    return bool(function.kind == TypeKind.FUNCTIONPROTO)


def _why_skipped(cursor: Cursor) -> str | None:
    if cursor.availability == cindex.AvailabilityKind.DEPRECATED:
        return "deprecated"
    if cursor.type.kind == TypeKind.FUNCTIONPROTO and cursor.type.is_function_variadic():
        return "variadic"
    if cursor.storage_class == StorageClass.STATIC or cursor.is_definition():
        return "inline"
    return None


def _c_argument(t: cindex.Type) -> str:
    if t.kind in ARRAYS:
        return f"{t.element_type.spelling} *"
    return str(t.spelling)


# ---- macros ------------------------------------------------------------------------------

_NODES = (
    ast.Expression, ast.Constant, ast.UnaryOp, ast.BinOp, ast.USub, ast.Invert,
    ast.Add, ast.Sub, ast.Mult, ast.LShift, ast.RShift, ast.BitOr, ast.BitAnd,
)  # fmt: skip


def evaluate(tokens: list[str], known: dict[str, int | float | str]) -> int | float | str | None:
    """The value of an object-like macro, or None when it is not a constant."""
    words = [repr(known[t]) if t in known else _without_suffix(t) for t in tokens]
    try:
        tree = ast.parse(" ".join(words), mode="eval")
        if not all(isinstance(node, _NODES) for node in ast.walk(tree)):
            return None
        value = eval(compile(tree, "macro", "eval"), {"__builtins__": {}})
    except (SyntaxError, ValueError, TypeError):
        return None
    return value if isinstance(value, int | float | str) else None


def _without_suffix(token: str) -> str:
    if re.fullmatch(r"0[xX][0-9a-fA-F]+[uUlL]*|[0-9]+[uUlL]*", token):
        return token.rstrip("uUlL")
    if re.fullmatch(r"[0-9.]+(e[-+]?[0-9]+)?[fF]", token):
        return token[:-1]
    return token
