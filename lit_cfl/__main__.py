"""`python -m lit_cfl` is the command `lit-cfl`."""

import os
import sys

if sys.path and sys.path[0] == os.getcwd():  # added by -m; without it no file here hides a package, as with the command
    del sys.path[0]

from lit_cfl.cli.main import main

sys.exit(main())
