"""Runs the command `python -m experiments`, from the root of a checkout."""

import sys

from experiments.command import main

sys.exit(main())
