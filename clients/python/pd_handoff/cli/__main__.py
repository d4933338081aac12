"""`python -m pd_handoff.cli`."""

import sys

from pd_handoff.cli import main

sys.exit(main())
