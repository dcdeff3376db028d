"""The format of a run directory: a number in config.yaml and checkpoint.pt. Imports nothing heavy."""

from pathlib import Path

from lit_cfl.errors import InputError

FORMAT = 4
ONE_ROW_PER_FILE = 3  # the format of Lit-CFL 0.2, which is still read


def require_format(path: Path, found: object) -> None:
    """Checks that this version can read the format of a run.

    Args:
        path: Path of the file that holds the number.
        found: Number in the file; None = there is none, as in `config.yaml` before 0.2.0.

    Raises:
        InputError: the run has another format; the message names the version that reads it.
    """
    if found not in (FORMAT, ONE_ROW_PER_FILE):
        earlier = found is None or (isinstance(found, int) and found < ONE_ROW_PER_FILE)
        raise InputError(
            f"{path} comes from a run of {'Lit-CFL 0.1.0' if earlier else 'a later version'}, whose files this "
            f"version cannot read (it reads format {FORMAT}); use {'0.1.0' if earlier else 'that version'}"
        )
