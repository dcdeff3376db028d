"""Compares algorithms on the same clients over several seeds: `lit-cfl compare`, in Python `lit_cfl.compare(...)`."""

import sys

from lit_cfl import CallablePackage

sys.modules[__name__].__class__ = CallablePackage
