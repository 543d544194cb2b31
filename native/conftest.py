"""The test of a kernel lies beside it, and has the fixtures of the build's tests."""

from tests.native.conftest import gcc, llama_cpp, run_python

__all__ = ["gcc", "llama_cpp", "run_python"]
