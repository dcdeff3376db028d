"""Imports objects that users name by a path, such as a function in one of their files."""

from importlib import import_module

from lit_cfl.errors import InputError, short_error


def import_object(option: str, path: str) -> object:
    """Imports an object by its path.

    Args:
        option: Option that names the object, for errors.
        path: Path of the object, such as `my_module.function`.

    Raises:
        InputError: The path names no object, or its module cannot be imported.
    """
    module, _, name = path.rpartition(".")
    try:
        found: object = getattr(import_module(module), name)
    except Exception as error:  # a user's module may raise anything
        raise InputError(f"{option} names {path!r}, which cannot be imported: {short_error(error)}") from error
    return found
