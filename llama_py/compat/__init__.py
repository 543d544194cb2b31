"""Code that was written for llama-cpp-python, unchanged, on llama_py.

``install()`` makes ``import llama_cpp`` find the package ``llama_py.compat.llama_cpp``, which has
the modules, names, signatures and defaults of llama-cpp-python 0.3.36::

    import llama_py.compat
    llama_py.compat.install()

    from llama_cpp import Llama

``python -m llama_py.compat app.py`` does that for a program that cannot be edited. What is lenient,
deprecated or private there exists only in this part of llama_py; ``Llama.native`` is the
``llama_py.Llama`` behind each model. docs/migrating.md lists the differences.

Importing this module, and ``install()``, load nothing.
"""

from __future__ import annotations

from llama_py.compat.finder import VERSION, install, installed, uninstall

__all__ = ["VERSION", "install", "installed", "uninstall"]
