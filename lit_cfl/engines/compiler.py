"""Finds the C++ compiler that compiled steps need."""

import os
import shutil


def compiler() -> str | None:
    """Returns the compiler that Inductor takes, too: `CXX`, else g++, clang++ or c++; None where there is none."""
    names = [os.environ["CXX"]] if "CXX" in os.environ else ["g++", "clang++", "c++"]
    return next(filter(shutil.which, names), None)
