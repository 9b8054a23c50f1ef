"""``python -m proxy``: the same as the console script ``pgturnstile``."""

import sys

from proxy.cli import main

sys.exit(main())
