"""Data sets on the Hugging Face Hub, or in local folders in the same format.

Both are loaded by `datasets.load_dataset`, so a local copy and a download take the same path. `datasets` is imported
only when a table is read. Tried on local copies in the Hub's format; not on the live Hub.
"""

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b, file_digest
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from lit_cfl.datamodules.images import files_in
from lit_cfl.datamodules.loading import how_to_fetch, load
from lit_cfl.errors import InputError, suggest
from lit_cfl.storage.given_paths import expand_home

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

Kind = Literal["image", "text", "numbers"]
_TABLES = (".csv", ".json", ".jsonl", ".parquet")
_FROM_TEXT = ("csv", "imagefolder")  # readers of text, in which a number can be written in several ways
_METADATA = "write {}/metadata.csv with a line for each image and the columns file_name, label and user"
_HUB_ID = re.compile(r"(\w[\w.-]*/)?\w[\w.-]*")


def find(
    source: str | Path, revision: str | None = None, subset: str | None = None, names: Sequence[str] = ()
) -> "Source":
    """Finds a data set by its Hub id or folder, without loading it.

    Args:
        source: Local folder, or an id on the Hub (`owner/name`). If the environment variable LITCFL_DATA=DIR is set,
            every id stands for the folder `DIR/<name>`.
        revision: Branch, tag or commit of the Hub copy; a local folder has none.
        subset: Name of the subset, if the data set has several.
        names: Columns that hold names, which stay as they are written in a text file.

    Raises:
        InputError: there is no such folder, and the name is not an id.
    """
    source, options = str(source), (revision, subset, tuple(names))
    if source and expand_home(source).is_dir():
        return Source(source, expand_home(source), *options)
    if Path(source).is_file() or Path(source).suffix in _TABLES or not _HUB_ID.fullmatch(source):
        raise InputError(
            f"source {source!r} is neither a folder nor an id of the Hub, such as ylecun/mnist; put a single file into "
            "a folder, under the name train"
        )
    local = os.environ.get("LITCFL_DATA")
    if not local:
        return Source(source, None, *options)
    folder = expand_home(local) / source.rpartition("/")[2]
    if not folder.is_dir():
        fetch = how_to_fetch(source, revision)
        raise InputError(f"LITCFL_DATA is {local}, but there is no folder {folder} for {source}; {fetch}")
    return Source(source, folder, *options)


@dataclass(frozen=True)
class Source:
    """A data set on the Hub or in a local folder, found by `find`.

    Args:
        name: Name given by the user.
        folder: Local folder; None: on the Hub.
        revision, subset, names: See `find`.
    """

    name: str
    folder: Path | None
    revision: str | None = None
    subset: str | None = None
    names: tuple[str, ...] = ()

    @cached_property
    def fingerprint(self) -> str:
        """Hash of a folder's files; for the Hub, the fingerprint of `datasets`, which depends on the commit."""
        if self.folder is not None:
            return _hash_of_files(self.folder)
        return " ".join([self.name, *(str(part._fingerprint) for part in self._splits.values())])

    @property
    def commit(self) -> str | None:
        """The loaded commit of the Hub; None for a local folder."""
        if self.folder is not None:
            return None
        files = [Path(file["filename"]) for part in self._splits.values() for file in part.cache_files]
        # `datasets` names a folder of its cache by the commit
        return next((path.parent.name for path in files if re.fullmatch("[0-9a-f]{40}", path.parent.name)), None)

    def has(self, split: str) -> bool:
        return split in self._splits

    def label_names(self, column: str) -> list[str] | None:
        """Names of the class labels 0, 1, ...; None if the column contains plain values.

        Raises:
            InputError: splits, or files of a folder, have different names, or the same in another order.
        """
        self._features([column])
        found = {split: _names_of(part.features.get(column)) for split, part in self._splits.items()}
        if self.folder is not None and self.subset is None:  # `datasets` takes the names from one file for all files
            found |= {path.name: _names_of(features.get(column)) for path, features in _features_of_files(self.folder)}
        (first, names), *others = found.items()
        for place, other in others:
            if other != names:
                raise InputError(
                    f"the labels of column {column!r} of {self.name} are {names} in {first}, but {other} in {place}: "
                    "a number would stand for two labels; write all parts with the same ClassLabel, or with strings"
                )
        return names

    def kind(self, column: str) -> Kind:
        """Finds the kind of a column (image, text or numbers) from its feature type.

        Raises:
            InputError: the column contains something that cannot be an input.
        """
        import datasets

        feature = self._features([column])[column]
        dtype = getattr(feature, "dtype", "")
        encoded = isinstance(feature, dict) and "bytes" in feature  # images without a declared image type
        if isinstance(feature, datasets.Image) or dtype in ("binary", "large_binary") or encoded:
            return "image"
        held = str(getattr(getattr(feature, "feature", feature), "dtype", ""))  # of a list, that of its entries
        is_date = held.startswith(("date", "time", "duration"))
        if is_date or isinstance(feature, dict | datasets.Audio | datasets.Video):
            if not is_date:
                held = f"structs of {', '.join(feature)}" if isinstance(feature, dict) else type(feature).__name__
            raise InputError(f"column {column!r} of {self.name} holds {held}; give one of images, text or numbers")
        return "text" if dtype in ("string", "large_string") else "numbers"

    @property
    def is_text(self) -> bool:
        """True if columns were read from text: those of `names` are then as they are written."""
        return _builder(self._splits) in _FROM_TEXT

    @property
    def is_image_folder(self) -> bool:
        """True if the images are files of a folder, with or without `metadata.csv`."""
        return _builder(self._splits) == "imagefolder"

    def table(self, columns: Sequence[str], splits: Sequence[str]) -> dict[str, list[Any]]:
        """Reads columns of splits as Python values, class labels as numbers, and joins the splits in order.

        Raises:
            InputError: there is no such split or column (the error lists the existing ones), or loading fails.
        """
        self._features(columns)
        parts = [self._split(split).select_columns(list(dict.fromkeys(columns))) for split in splits]
        tables = [part.with_format("arrow")[:] for part in parts]
        return {column: [value for table in tables for value in table[column].to_pylist()] for column in columns}

    def images(self, column: str, splits: Sequence[str], rows: np.ndarray | None = None) -> Iterator[bytes | None]:
        """Yields the encoded images of several splits in order, with a thousand in memory at a time.

        Args:
            column: Column of images or bytes.
            splits: Names of the splits.
            rows: Rows to read, ascending, counted over all splits; None = all.

        Raises:
            InputError: as in `table`, or the column holds no images.
        """
        if (kind := self.kind(column)) != "image":
            raise InputError(
                f"column {column!r} of {self.name} holds {kind}, not images; give a source with images there"
            )
        before = 0
        for split in splits:
            part = self._split(split).select_columns([column])
            if rows is not None:
                part = part.select(rows[(rows >= before) & (rows < before + len(part))] - before)
            for block in part.with_format("arrow").iter(1000):
                yield from files_in(block[column])
            before += self.size(split)

    def array(self, split: str, column: str) -> np.ndarray:
        """Reads a column of numbers, or of lists of numbers, `[N, ...]`; dtype object if the lists differ in length."""
        self._features([column])
        return np.asarray(self._split(split).with_format("numpy")[column][:])

    def size(self, split: str) -> int:
        """Counts the rows of a split."""
        return len(self._split(split))

    @cached_property
    def _splits(self) -> "DatasetDict":
        import datasets

        content = None if self.folder is None else self.fingerprint
        fetch = how_to_fetch(self.name, self.revision)
        options = self.folder or self.name, self.subset, self.revision, fetch, content
        splits = load(*options)
        features = next(iter(splits.values())).features
        read = {name: features[name] for name in self.names if isinstance(features.get(name), datasets.Value)}
        if _builder(splits) in _FROM_TEXT and any(feature.dtype != "string" for feature in read.values()):
            text = {name: datasets.Value("string") for name in read}
            return load(*options, datasets.Features({**features, **text}))
        return splits

    def _split(self, split: str) -> "Dataset":
        if not self.has(split):
            hint = suggest(split, self._splits, 0.7)
            raise InputError(f"{self.name} has no split {split!r}{hint}; it has {', '.join(self._splits)}")
        return self._splits[split]

    def _features(self, columns: Sequence[str]) -> dict[str, Any]:
        features: dict[str, Any] = next(iter(self._splits.values())).features
        for column in columns:
            if column not in features:
                hint = suggest(column, features, 0.7)
                more = f"; {_METADATA.format(self.name)}" if self.is_image_folder else ""
                raise InputError(f"{self.name} has no column {column!r}{hint}; it has {', '.join(features)}{more}")
        return features


def _builder(splits: "DatasetDict") -> str:
    """Returns the name of the reader that `datasets` chose."""
    return str(next(iter(splits.values())).info.builder_name)


def _names_of(feature: Any) -> list[str] | None:
    # for a list, the names belong to the feature of its entries
    names = getattr(getattr(feature, "feature", feature), "names", None)
    return None if names is None else list(names)


def _features_of_files(folder: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yields the features of each Parquet file in a folder, skipping hidden and unreadable files."""
    import datasets
    from pyarrow import ArrowException, parquet

    for path in sorted(folder.rglob("*.parquet")):
        if any(part.startswith(".") for part in path.relative_to(folder).parts):
            continue
        try:
            features = datasets.Features.from_arrow_schema(parquet.read_schema(path))
        except (ArrowException, OSError, ValueError):  # loading reports a damaged file, if it reads that file at all
            continue
        yield path, features


def _hash_of_files(folder: Path) -> str:
    """Hashes names and bytes of all files except hidden ones (`hf download` keeps notes in `.cache`)."""
    digest = blake2b(digest_size=16)
    files = (Path(root, name) for root, _, names in os.walk(folder, followlinks=True) for name in names)
    for path in sorted(files):
        name = path.relative_to(folder)
        if not path.is_file() or any(part.startswith(".") for part in name.parts):
            continue
        try:
            with path.open("rb") as file:
                digest.update(name.as_posix().encode() + b"\0" + file_digest(file, blake2b).digest())
        except OSError as error:
            raise InputError(f"{path} cannot be read ({error.strerror}); fix it, or give another source") from error
    return digest.hexdigest()
