"""Runs the command `lit-cfl` as `python -m lit_cfl`."""

import os
import sys

# python -m adds the current folder to the path, where files may hide packages
if sys.path and sys.path[0] == os.getcwd():
    del sys.path[0]

from lit_cfl.cli.main import main

sys.exit(main())
