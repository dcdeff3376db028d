"""`python -m lit_cfl` is the command `lit-cfl`."""

import sys

from lit_cfl.cli import main

sys.exit(main())
