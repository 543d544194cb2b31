"""``python -m tools.move_pin``: see the package, and ``vendor/README.md``."""

import sys

from tools.move_pin.command import main

sys.exit(main())
