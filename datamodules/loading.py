"""Loads data with `datasets`, silences its output, and turns its errors into errors that name a remedy."""

import errno
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lit_cfl.errors import InputError

if TYPE_CHECKING:
    from datasets import DatasetDict, Features

_NOT_WRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR)
_SUBSETS = re.compile(r"(?:Config name is missing|BuilderConfig .* not found).*?(\[.*?\])", re.DOTALL)


def load(
    place: Path | str,
    subset: str | None,
    revision: str | None,
    fetch: str,
    content: str | None = None,
    features: "Features | None" = None,
) -> "DatasetDict":
    """Loads all splits of a data set, memory-mapped from the cache of `datasets`.

    Args:
        place: Local folder, or an id on the Hub.
        subset: Name of the subset, if there are several.
        revision: Revision of the Hub copy.
        fetch: Advice for the error if the Hub cannot be reached.
        content: Hash of a local folder, which separates its rows in the cache: `datasets` itself identifies a folder
            with a README only by its name and file patterns.
        features: Types of the columns; None = those that `datasets` finds.

    Raises:
        InputError: the data set cannot be loaded.
    """
    import datasets
    import pyarrow

    with quiet():
        try:
            options: dict[str, Any] = {} if features is None else {"features": features}
            if content is not None:
                options["cache_dir"] = f"{datasets.config.HF_DATASETS_CACHE}/lit-cfl-{content}"
            return datasets.load_dataset(str(place), subset, revision=revision, **options)
        except Exception as error:  # `datasets` raises nearly anything, some of it from pyarrow and the network
            raise InputError(_explain(error, place, fetch)) from error
        finally:
            pyarrow.default_memory_pool().release_unused()  # otherwise pyarrow keeps the largest block of each file


@contextmanager
def quiet() -> Iterator[None]:
    """Silences logs and progress bars of `datasets` and `huggingface_hub`, and restores their settings afterwards."""
    import datasets
    from huggingface_hub import utils as hub

    loggers = [logging.getLogger(name) for name in ("datasets", "huggingface_hub")]
    levels = [logger.level for logger in loggers]
    shown = [bars for bars in (datasets, hub) if not bars.are_progress_bars_disabled()]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    for bars in shown:
        bars.disable_progress_bars()
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        for bars in shown:
            bars.enable_progress_bars()


def how_to_fetch(source: str, revision: str | None) -> str:
    """Explains what to do if the Hub cannot be reached."""
    name = source.rpartition("/")[2]
    at = f" --revision {revision}" if revision else ""
    return (
        f"fetch it where there is a network: hf download --repo-type dataset {source}{at} --local-dir DIR/{name}; "
        f"copy DIR here and set LITCFL_DATA=DIR, or give source: DIR/{name}"
    )


def _explain(error: Exception, place: Path | str, fetch: str) -> str:
    """Returns a message for three causes: no subset is chosen, the cache cannot be written, and all others."""
    import datasets

    causes: list[BaseException] = [error]
    while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None:
        causes.append(cause)
    for cause in causes:
        if subsets := _SUBSETS.search(str(cause)):
            return f"{place} has several subsets: set data.subset to one of {subsets[1]}"
        of_source = isinstance(place, Path) and str(getattr(cause, "filename", "")).startswith(str(place))
        if isinstance(cause, OSError) and cause.errno in _NOT_WRITABLE and not of_source:
            return (
                f"the cache of Hugging Face data sets, {datasets.config.HF_DATASETS_CACHE}, cannot be written "
                f"({cause.strerror}); free some disk space there, or set HF_HOME to another folder"
            )
    first, last = ((str(one).strip() or type(one).__name__).partition("\n")[0] for one in (error, causes[-1]))
    if isinstance(place, str):
        return f"{place} is not a folder here, and cannot be loaded from the Hugging Face Hub ({first}); {fetch}"
    return f"{place} cannot be loaded ({last}); give a folder of complete Parquet files, or of text in UTF-8"
