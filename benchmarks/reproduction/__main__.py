"""Runs the command `python -m benchmarks.reproduction`, from the root of a checkout."""

import sys

from benchmarks.reproduction.command import main

sys.exit(main())
