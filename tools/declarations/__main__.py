"""``python -m tools.declarations``: see ``generate``."""

import sys

from tools.declarations.generate import main

sys.exit(main())
