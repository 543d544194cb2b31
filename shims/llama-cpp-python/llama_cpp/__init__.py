"""``import llama_cpp`` is llama_py: this module puts the one of llama_py in its own place."""

import importlib
import sys

from llama_py import compat

del sys.modules[__name__]
compat.install()
importlib.import_module(__name__)
