"""``Finder``: where ``import llama_cpp`` leads after ``install()``.

A finder at the front of ``sys.meta_path``, and not entries in ``sys.modules``: a module is imported
when it is asked for, it is the same object under both names, so that ``isinstance`` holds, and
``find_spec``, ``import_module`` and ``reload`` work. It also answers when ``importlib.metadata`` is
asked for the version of ``llama-cpp-python``.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any, Literal, cast

if TYPE_CHECKING:
    from importlib.metadata import Distribution

__all__ = ["VERSION", "Defaults", "defaults", "install", "installed", "uninstall"]

#: The version of llama-cpp-python whose surface this is.
VERSION = "0.3.36"

ALIAS = "llama_cpp"
PACKAGE = "llama_py.compat.llama_cpp"
_DISTRIBUTION = "llama-cpp-python"

Defaults = Literal["llama_cpp", "llama_py"]


class _Loader:
    """Gives the module of this package, which the ordinary machinery imports."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return importlib.import_module(_home(spec.name))

    def exec_module(self, module: ModuleType) -> None:
        """Nothing: it is executed already, and ``reload`` keeps it."""

    def get_code(self, fullname: str) -> CodeType | None:
        """The code of the module, for ``python -m``."""
        found = importlib.util.find_spec(_home(fullname))
        loader = None if found is None else found.loader
        get: Any = getattr(loader, "get_code", None)
        code: CodeType | None = None if get is None else get(_home(fullname))
        return code


class Finder:
    """Finds ``llama_cpp`` and its modules in this package.

    Attributes:
        defaults: which defaults ``llama_cpp.Llama`` has.
    """

    def __init__(self) -> None:
        self.defaults: Defaults = "llama_cpp"
        self._loader = _Loader()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module behind a name that begins with ``llama_cpp``; None for all others."""
        if fullname != ALIAS and not fullname.startswith(ALIAS + "."):
            return None
        found = importlib.util.find_spec(_home(fullname))
        if found is None:
            return None
        loader: Any = self._loader
        spec = ModuleSpec(fullname, loader, origin=found.origin)
        spec.submodule_search_locations = found.submodule_search_locations
        spec.has_location = True
        return spec

    def find_distributions(self, context: Any = None) -> Iterator[Distribution]:
        """What ``importlib.metadata`` knows about ``llama-cpp-python``."""
        name = getattr(context, "name", None)
        if name is not None and name.lower().replace("_", "-") == _DISTRIBUTION:
            from llama_py.compat.distribution import Unpacked

            yield Unpacked(_DISTRIBUTION, VERSION)

    def invalidate_caches(self) -> None:
        """Nothing: there are none."""


def _home(name: str) -> str:
    """The name of the module in this package for one below ``llama_cpp``."""
    return PACKAGE + name[len(ALIAS) :]


_finder = Finder()


def install(*, defaults: Defaults = "llama_cpp") -> None:
    """Make ``import llama_cpp`` find llama_py, in this process, from now on.

    Calling it again changes the defaults only. An installed llama-cpp-python stays where it is, and
    is not used.

    Args:
        defaults: ``"llama_cpp"`` for those of llama-cpp-python (512 tokens of context, no layers on
            the GPU, llama.cpp's log on standard error); ``"llama_py"`` for those of ``llama_py``,
            in place of each of them that a call does not change.

    Raises:
        RuntimeError: llama-cpp-python itself was imported already.
        ValueError: there are no such defaults.
    """
    if defaults not in ("llama_cpp", "llama_py"):
        raise ValueError(f"defaults={defaults!r}: expected 'llama_cpp' or 'llama_py'")
    loaded = sys.modules.get(ALIAS)
    if loaded is not None and loaded is not sys.modules.get(PACKAGE):
        where = getattr(loaded, "__file__", None) or "another package"
        raise RuntimeError(
            f"llama_cpp was imported already, from {where}; call llama_py.compat.install() before "
            "the first import of llama_cpp, or start the program with python -m llama_py.compat"
        )
    _finder.defaults = defaults
    if not installed():
        if loaded is None and importlib.util.find_spec(ALIAS) is not None:
            import logging

            logging.getLogger("llama_py").info(
                "llama_cpp is llama_py from now on, although llama-cpp-python is there"
            )
        sys.meta_path.insert(0, cast(Any, _finder))


def uninstall() -> None:
    """Let ``import llama_cpp`` find what it found before; models that are loaded go on working."""
    if installed():
        sys.meta_path.remove(cast(Any, _finder))
    for name in [each for each in sys.modules if each == ALIAS or each.startswith(ALIAS + ".")]:
        if sys.modules[name] is sys.modules.get(_home(name)):
            del sys.modules[name]


def installed() -> bool:
    """Whether ``import llama_cpp`` finds llama_py."""
    return any(each is _finder for each in sys.meta_path)


def defaults() -> Defaults:
    """Which defaults ``llama_cpp.Llama`` has in this process."""
    return _finder.defaults
