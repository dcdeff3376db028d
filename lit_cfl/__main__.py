"""Runs the command `lit-cfl` as `python -m lit_cfl`."""

import os
import sys

if sys.path and sys.path[0] == os.getcwd():  # -m adds the current folder, whose files could hide packages
    del sys.path[0]

from lit_cfl.cli.main import main

sys.exit(main())
