"""A net that is named without its module. Nobody imports this file."""

import nowhere  # noqa: F401


class MyNet: ...
