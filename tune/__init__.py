"""Hyper-parameter search with Ray Tune: `lit-cfl tune`, in Python `lit_cfl.tune(...)`, and `lit-cfl launch`."""

import sys

from lit_cfl import CallablePackage

sys.modules[__name__].__class__ = CallablePackage
