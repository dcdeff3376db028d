"""Checks paths and folder names given by users; `~` means the home folder."""

from pathlib import Path
from shlex import quote

from lit_cfl.errors import InputError, suggest

_RECORDS = {"compare.yaml": "compare", "study.yaml": "tune", "config.yaml": "run"}  # file of each command's directory
_WRITTEN = {"compare": "a comparison", "tune": "a study", "run": "a run"}
_MOST_BYTES = 180  # file systems allow 255, and the run's time and file endings are added


def expand_home(path: str | Path) -> Path:
    """Replaces `~` by the home folder. Raises InputError if this user has none."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise InputError(f"{str(path)!r} begins with ~, but this user has no home folder; give a full path") from error


def describe_missing(path: Path, what: str) -> str:
    """Returns a message that a path does not exist, with a similar name or the folder where relative paths start.

    Args:
        path: Path that was not found.
        what: Kinds of things that were looked for, such as `file or folder`.
    """
    near = suggest(path.name, (one.name for one in path.parent.glob(f"*{path.suffix}")), 0.7)
    near = near or suggest(path.name, (one.name for one in path.parent.glob("*") if one.stem == path.stem))
    start = "" if near or path.is_absolute() else f"; relative paths start in the current folder, {Path.cwd()}"
    return f"there is no {what} {path}{near}{start}"


def suggest_directory(path: Path, file: str) -> str:
    """Returns ` (did you mean ...?)` with a directory of a similar name, next to `path`, that contains `file`."""
    return suggest(path.name, (found.parent.name for found in path.parent.glob(f"*/{file}")), 0.7)


def require_own_kind(path: Path, command: str) -> None:
    """Raises InputError if a directory was written by another command than the one that is to resume it.

    Args:
        path: Directory as the user gave it.
        command: The command, such as `run`.
    """
    folder = expand_home(path)
    other = next((of for file, of in _RECORDS.items() if (folder / file).is_file()), command)
    if other != command:
        raise InputError(
            f"{path} is not {_WRITTEN[command]}; resume it with lit-cfl {other} --resume {quote(str(path))}"
        )


def resolve_directory(path: str, option: str) -> Path:
    """Converts an option's value to the path of a directory.

    Args:
        path: Value of the option.
        option: Name of the option, for the message.

    Raises:
        InputError: the value is empty, or no file system allows it.
    """
    if not path.strip() or "\0" in path:
        raise InputError(f"{option} is {path!r}; give a folder, or leave it out")
    found = expand_home(path)
    for part in found.parts:
        if len(_bytes(part)) > 255:
            raise InputError(f"{option} has a name of {len(_bytes(part))} bytes ({part[:20]}...); give 255 or fewer")
    return found


def require_folder_name(name: str, what: str) -> None:
    """Checks that a name can be used for a run's folder.

    Args:
        name: Name to check.
        what: Option that gives the name, for the message.

    Raises:
        InputError: the name is empty, too long, or contains slashes or characters that cannot be printed.
    """
    wrong = None
    if not name or name in (".", "..") or Path(name).name != name:
        wrong = "give a word without slashes"
    elif not name.isprintable():
        wrong = "leave out what cannot be printed, such as line breaks"
    elif len(_bytes(name)) > _MOST_BYTES:
        wrong = f"give {_MOST_BYTES} bytes or fewer, not {len(_bytes(name))}"
    if wrong is not None:
        shown = name if len(name) <= 40 else f"{name[:40]}..."
        raise InputError(f"{what} is {shown!r}; it names a folder in runs/, so {wrong}")


def _bytes(name: str) -> bytes:
    return name.encode("utf-8", errors="surrogatepass")
