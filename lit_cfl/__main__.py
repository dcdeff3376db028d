"""`python -m lit_cfl` is the command `lit-cfl`."""

import os
import sys

if sys.path and sys.path[0] == os.getcwd():  # -m adds the current folder, whose files could hide packages
    del sys.path[0]

from lit_cfl.cli.main import main

sys.exit(main())
