"""Trains clients on workers of Ray: the engine `ray`."""

from lit_cfl.errors import InputError

try:
    import ray as _  # noqa: F401  # the parts of this package take it for granted
except ImportError as error:
    raise InputError(
        "the engine 'ray' needs Ray, which is not installed: pip install 'ray[default]>=2.60', or use --engine auto"
    ) from error
