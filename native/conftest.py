"""The test of a kernel lies beside it, and has the settings and fixtures of all tests."""

import tests.conftest  # noqa: F401 - the settings
from tests.native.conftest import gcc, llama_cpp, run_python

__all__ = ["gcc", "llama_cpp", "run_python"]
