"""``python -m llama_py``: the command line."""

import sys

from llama_py.cli import main

sys.exit(main())
