"""The format of a run directory: a number in config.yaml and checkpoint.pt. Imports nothing heavy."""

from pathlib import Path

from lit_cfl.errors import InputError

FORMAT = 1


class OtherFormatError(InputError):
    """Raised when a file of a run directory has another format than this version reads."""


def require_format(path: Path, found: object) -> None:
    """Checks that this version can read the format of a run.

    Args:
        path: Path of the file that holds the number.
        found: Number in the file; None = there is none.

    Raises:
        OtherFormatError: the run has another format, or the file has no number.
    """
    if found != FORMAT:
        number = "no format number" if found is None else f"format {found}"
        raise OtherFormatError(
            f"{path} has {number}, but this version of Lit-CFL reads format {FORMAT}; start a new run in another "
            "directory, or use the version that wrote this one"
        )
