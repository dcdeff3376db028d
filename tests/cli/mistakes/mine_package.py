"""A module that imports a package that is not installed."""

import pandoras_box  # noqa: F401
