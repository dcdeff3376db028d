"""Your own data: NumPy arrays, torch tensors, a table, an .npz file, or a folder with an .npz file per client."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from lit_cfl.data import Division, Examples
from lit_cfl.data.checks import require_several, warn_of_large_inputs
from lit_cfl.data.npz import read_npz
from lit_cfl.datamodules.columns import as_array, classes_of, labels_of, number_by, number_clients, scalars, times_of
from lit_cfl.datamodules.partition import IID, Partition, Pool
from lit_cfl.datamodules.partition.natural import Natural
from lit_cfl.datamodules.pooled import PooledDataModule
from lit_cfl.datamodules.skew import Skew, skew_name
from lit_cfl.datamodules.table import ENDINGS, read_table
from lit_cfl.errors import InputError, Notice
from lit_cfl.storage.given_paths import describe_missing, expand_home

KEYS = ("x", "y", "client", "cluster", "is_test", "time")
_TABLE = f"a table ({', '.join(ENDINGS)})"
_LARGEST = np.iinfo(np.int64).max
_KINDS = {"b": "integers", "i": "integers", "u": "integers", "f": "floats", "U": "words"}  # as for joining arrays


class ArrayData(PooledDataModule):
    """Your own arrays: x, y, and optionally the client, the true cluster, the part and the time of each example.

    `client` names the clients; without it there are ten of equal size, or those of `partition`.

    `source` is a table (.csv, .tsv, .txt, .parquet, .xlsx) with a column y, optionally client, cluster and is_test, and
    inputs (numbers) in all other columns; or an .npz file with x, and optionally the others; or a folder with one .npz
    file per client, named after the client, with x, and optionally y, is_test and a single cluster. Nothing is
    unpickled.

    Args:
        x: Inputs `[N, ...]`: a NumPy array, a torch tensor or lists, copied only if necessary.
            `[N, channels, height, width]` are images, and so are uint8 `[N, height, width]`. Other integers are
            numbers, or token ids if the net has an embedding.
        y: Labels `[N]`, integers from 0, or words, which are numbered in ascending order, or in that of their pandas
            categories; or floats `[N]`, the numbers to predict; or several labels per example `[N, L]`, each 0 or 1
            (bool, integers or floats; values between are soft labels); None = no labels. The task must accept them.
        client: Client of each example `[N]`, numbers or words; clients are numbered in ascending order.
        cluster: True clusters, for scoring only: one per example `[N]`, or one per client in that order; integers from
            0, or words, numbered as those of y.
        is_test: True (or 1) for test examples, False (or 0) for others `[N]`; examples are then numbered with the test
            examples last. None = `test` decides.
        time: Time of each example `[N]`, numbers or dates (as text: 2024-03-05, 2024-03-05 14:30). Each client's last
            examples are then its test data, and the last of the others its validation data, so that nothing is trained
            on the future; examples are numbered in the order of time. Ties stay in the order of the source.
        source: File or folder that replaces x, y, client, cluster, is_test and time.
        columns: Names of the columns y, client, cluster and is_test in a table that names them differently, such as
            `{y: label, client: user}`, and of a column of times, `{time: date}`; `y: null` = no labels.
        classes: All values of y, in the order in which they are numbered, such as [low, mid, high]; null = ascending.
        clusters: The same for the values of cluster.
        num_labels: Size of the label space; 0 = labels are numbers to predict, also if they are integers; null = the
            largest label + 1, or 0 if labels are floats.
        vocabulary: Number of token ids; inputs are then 0 to `vocabulary - 1`, whatever the net. null = integer inputs
            are token ids if the net has an embedding.
        scale: Factor on the inputs, above 0; null = 1/255 for uint8, otherwise 1, with a note if they are large.
        channels: Place of the channel axis in four-dimensional x, `first` or `last`; null = whichever of the two has
            size 1 or 3.
        skew_kind: Known difference between clusters of clients: `feature`, `label`, or `other`.
        test: Share of each client's examples kept for testing, 0 to below 1, drawn at random unless `time` is given;
            null = 0.2. `last`: 0.2, the last ones in the order of the source; and so is validation. A `partition` has
            its own share.
        partition: Rule that divides the examples among clients, instead of the natural clients and `test`.
        skew: Further differences between clusters of clients, as in `PooledDataModule`.
        options: Options of `PooledDataModule`.
    """

    def __init__(
        self,
        x: Any = None,
        y: Any = None,
        client: Any = None,
        cluster: Any = None,
        is_test: Any = None,
        time: Any = None,
        *,
        source: str | Path | None = None,
        columns: dict[str, str | None] | None = None,
        classes: list[str | int] | None = None,
        clusters: list[str | int] | None = None,
        num_labels: int | None = None,
        vocabulary: int | None = None,
        scale: float | None = None,
        channels: Literal["first", "last"] | None = None,
        skew_kind: Literal["feature", "label", "other"] = "other",
        test: float | Literal["last"] | None = None,
        partition: Partition | None = None,
        skew: Skew | Sequence[Skew] = (),
        **options: Any,
    ) -> None:
        super().__init__(Natural() if partition is None else partition, skew, **options)
        if num_labels is not None and num_labels < 0:
            raise InputError(f"num_labels is {num_labels}; give 1 or more, 0 for numbers to predict, or null")
        if vocabulary is not None and vocabulary < 1:
            raise InputError(f"vocabulary is {vocabulary}; give 1 or more, or null")
        arrays = dict(zip(KEYS, (x, y, client, cluster, is_test, time), strict=True))
        self.arrays = {name: array for name, array in arrays.items() if array is not None}
        _require_arrays_or_source(self.arrays, source)
        if columns and not _is_table(Path(source or "")):
            raise InputError(f"columns is {columns}, but source is {source}; give {_TABLE}, or leave columns out")
        self.source, self.num_labels, self.scale, self.channels = source, num_labels, scale, channels
        self.columns, self.vocabulary, self.test, self.skew_kind = columns or {}, vocabulary, test, skew_kind
        self.classes, self.clusters = classes, clusters
        self._chosen = partition

    def pool(self) -> Pool:
        arrays = self.arrays if self.source is None else read_source(expand_home(self.source), self.columns)
        # column names from a table or a DataFrame
        columns = tuple(map(str, arrays.get("input_names", getattr(arrays["x"], "columns", ()))))
        y, classes = number_by(self.classes, arrays.get("y"), "y")
        cluster, clusters = number_by(self.clusters, arrays.get("cluster"), "cluster")
        num_labels = len(classes) if classes else self.num_labels
        if classes and self.num_labels not in (None, num_labels):
            raise InputError(
                f"y has {num_labels} classes ({', '.join(classes)}); leave out num_labels: {self.num_labels}"
            )
        examples = examples_of(arrays["x"], y, num_labels, self.vocabulary, self.scale, self.channels, columns)
        examples = replace(examples, label_names=classes) if classes else examples
        warn_of_large_inputs(examples)
        count, owner, names, self._clusters = len(examples), None, (), None
        if "client" in arrays:
            numbers, found = number_clients(_column("client", arrays["client"], count), "client")
            owner, names = torch.from_numpy(numbers), tuple(found.tolist())
            if "cluster" in arrays:
                self._clusters, words = cluster_per_example(cluster, numbers, names)
                self._cluster_names = clusters or words
        elif "cluster" in arrays:
            raise InputError("cluster is given without client, but only clients have clusters; give both")
        return self._arrange(Pool(examples, count, owner, names, self.test == "last"), arrays)

    def _arrange(self, pool: Pool, arrays: Mapping[str, Any]) -> Pool:
        """Numbers marked test examples last, or all examples in the order of time, if the arrays have either."""
        if {"is_test", "time"} <= arrays.keys():
            raise InputError("time and is_test both say which examples are for testing; leave one of them out")
        name = next((one for one in ("time", "is_test") if one in arrays), None)
        if name is None:
            return pool
        column = _column(name, arrays[name], pool.num_train)
        keys = times_of(column, name) if name == "time" else _marks(column)
        order = torch.from_numpy(np.argsort(keys, kind="stable"))
        examples = replace(pool.examples, inputs=pool.examples.inputs[order], labels=pool.examples.labels[order])
        owner = None if pool.owner is None else pool.owner[order]
        self._clusters = None if self._clusters is None else self._clusters[order]
        if name == "time":
            return replace(pool, examples=examples, owner=owner, is_ordered=True)
        return replace(pool, examples=examples, num_train=int((~keys).sum()), owner=owner)

    def _partition(self, rng: np.random.Generator) -> Division:
        for option, test in {"test": self.test, "partition.test": getattr(self._chosen, "test", None)}.items():
            if self._pool.has_test and (isinstance(test, float | int) or test == "last"):
                raise InputError(
                    f"{option} is {test}, but is_test says which examples are for testing; leave one of them out"
                )
        self.partition = self._chosen or self._usual_partition()
        division = super()._partition(rng)
        division = replace(division, skew=skew_name(division.skew, self.skew_kind))
        if self._clusters is None:
            return division
        # true clusters are computed from the examples, since a partition may leave out or renumber clients
        train, words = division.train, self._cluster_names
        clusters = cluster_per_client(self._clusters[train.entries], train.owners, range(len(train)), words)
        return replace(division, true_clusters=clusters, cluster_names=words)

    def _usual_partition(self) -> Partition:
        """Returns the partition that is used if none is chosen."""
        share = 0.2 if self.test is None or self.test == "last" else self.test
        if self._pool.owner is not None:
            return Natural(test="own" if self._pool.has_test else share)
        if self._pool.has_test:
            raise InputError("is_test is given without client; give client, too, or a partition")
        warnings.warn(
            "client is not given: the examples are divided evenly among ten clients; give client, or a partition",
            Notice,
            stacklevel=2,
        )
        return IID(10, share)


def _require_arrays_or_source(arrays: Mapping[str, Any], source: object) -> None:
    """Raises InputError unless either x or a source is given."""
    for name, array in arrays.items():
        if isinstance(array, str | Path):
            raise InputError(f"{name} is {str(array)!r}; give the array itself, or name a file by source")
    if not isinstance(source, str | Path | None) or (arrays if source is not None else "x" not in arrays):
        given = ", ".join([*arrays, *([] if source is None else [f"source ({type(source).__name__})"])])
        raise InputError(
            f"{given or 'nothing'} given; give x, and y if you have it, or the path of a source alone: {_TABLE}, a "
            ".npz, or a folder of .npz"
        )


def _marks(values: np.ndarray) -> np.ndarray:
    """Converts marks of test examples to bool `[N]`. Raises InputError for other values, or if all are equal."""
    words = np.char.lower(values.astype(np.str_))
    marks: np.ndarray = np.isin(words, ["true", "1", "1.0"])
    if (wrong := ~marks & ~np.isin(words, ["false", "0", "0.0"])).any():
        raise InputError(
            f"is_test holds {str(values[wrong][0])!r}; give true or false, or 1 or 0, such as table['part'] == 'test'"
        )
    if marks.all() or not marks.any():
        raise InputError(f"is_test is {values[0]} for all examples; mark some of them for testing, or leave it out")
    return marks


def examples_of(
    x: Any,
    y: Any = None,
    num_labels: int | None = None,
    vocabulary: int | None = None,
    scale: float | None = None,
    channels: str | None = None,
    input_names: tuple[str, ...] = (),
) -> Examples:
    """Checks arrays and makes examples of them; arguments as in `ArrayData`.

    `input_names` are the names of a table's input columns.
    """
    inputs = torch.from_numpy(_numbers("x", x))
    if inputs.ndim < 2 or not inputs.numel():
        raise InputError(
            f"x has shape {tuple(inputs.shape)}; give [N, ...] with at least one example and one more axis"
        )
    labels, num_labels, names = _labels(y, len(inputs), num_labels)
    if scale is not None and not 0 < scale < float("inf"):
        raise InputError(f"scale is {scale}; give a number above 0, or null for 1/255 of uint8 and 1 of others")
    if not (good := inputs.isfinite().flatten(1).all(1)).all():
        row = int(good.int().argmin())
        column = f", column {input_names[int(inputs[row].isfinite().int().argmin())]!r}" if input_names else ""
        raise InputError(f"x holds NaN or infinity in row {row} (from 0){column}; replace the value, or drop the row")
    if vocabulary is not None and (inputs.is_floating_point() or scale is not None):
        raise InputError(
            f"vocabulary is {vocabulary}, so x holds token ids, but it has dtype {inputs.dtype} and scale is {scale}; "
            "give integers without scale, or leave out vocabulary"
        )
    if vocabulary is not None:
        inputs, scale = inputs.int() if inputs.dtype == torch.uint8 else inputs, 1.0
    elif scale is None:
        scale = 1 / 255 if inputs.dtype == torch.uint8 else 1.0
    elif inputs.dtype in (torch.int32, torch.int64):
        inputs = inputs.float()  # scaled inputs are not token ids
    inputs = _images(inputs, channels) if vocabulary is None else inputs
    known = vocabulary or 0
    return Examples(inputs, labels, num_labels, scale, vocabulary=known, label_names=names, input_names=input_names)


def _labels(y: Any, count: int, num_labels: int | None) -> tuple[Tensor, int, tuple[str, ...]]:
    """Returns labels in their stored form, the number of classes (0 if they are not classes), and the labels' names."""
    if y is None:
        return torch.zeros(count, dtype=torch.int64), 0, ()
    column = as_array(y, "y")
    if column.ndim == 2 and len(column) == count and column.shape[1] > 1:
        return _several_labels(column, num_labels), 0, ()
    if column.shape != (count,):
        raise InputError(
            f"y has shape {column.shape} for {count} examples in x; give one label for each, [{count}], or several, "
            f"[{count}, L]"
        )
    column = scalars(y, "y")
    if column.dtype.kind != "f" and num_labels != 0:
        labels, size, names = classes_of(column, "y", num_labels)
        return torch.from_numpy(labels), size, names
    if column.dtype.kind not in "iufb":
        raise InputError(f"y holds {str(column[0])!r} and num_labels is 0, for numbers to predict; give numbers")
    if num_labels:
        raise InputError(f"y has dtype {column.dtype} and num_labels is {num_labels}; give classes as y.astype(int)")
    numbers = torch.from_numpy(_numbers("y", column if column.dtype.kind == "f" else column.astype(np.float32)))
    return numbers.float() if numbers.dtype == torch.float16 else numbers, 0, ()


def _several_labels(y: np.ndarray, num_labels: int | None) -> Tensor:
    """Converts several labels per example `[N, L]` to bool, or to float32 if some are between 0 and 1."""
    if num_labels not in (None, y.shape[1]):
        raise InputError(
            f"y has {y.shape[1]} labels for each example and num_labels is {num_labels}; leave out num_labels"
        )
    labels = torch.from_numpy(np.array(y) if y.dtype.kind == "b" else _numbers("y", y))
    require_several(labels if labels.is_floating_point() else labels.float(), "the labels y")
    if labels.is_floating_point() and bool(((labels != 0) & (labels != 1)).any()):
        return labels.float()
    return labels.bool()


def _images(x: Tensor, channels: str | None) -> Tensor:
    """Arranges images as `[N, channels, height, width]`; other inputs stay unchanged."""
    if x.ndim != 4:
        return x[:, None] if x.ndim == 3 and x.dtype == torch.uint8 else x
    first, last = x.shape[1] in (1, 3), x.shape[3] in (1, 3)
    if channels is None and first == last:
        raise InputError(f"x has shape {tuple(x.shape)}: which axis holds the channels? Set channels to first or last")
    is_last = last if channels is None else channels == "last"
    return x.permute(0, 3, 1, 2).contiguous() if is_last else x


def cluster_per_example(
    cluster: Any, owner: np.ndarray, names: Sequence[object] | np.ndarray
) -> tuple[Tensor, tuple[str, ...]]:
    """Finds the true cluster of each example, int64 `[N]`, from clusters per example or per client.

    Args:
        owner: Client of each example, int64 `[N]`.
        names: Names of the clients.

    Returns:
        the clusters, and the names of 0, 1, ... if they are words; empty for numbers.
    """
    values, words = labels_of(_column("cluster", cluster, len(owner), len(names)), "cluster")
    if values.min() < 0:
        raise InputError(f"cluster holds {values.min()}; give true clusters as integers from 0, or as words")
    if len(values) != len(owner):
        return torch.from_numpy(values[owner]), words
    cluster_per_client(torch.from_numpy(values), torch.from_numpy(owner), names, words)
    return torch.from_numpy(values), words


def cluster_per_client(
    clusters: Tensor, owners: Tensor, names: Sequence[object] | np.ndarray, words: Sequence[str] = ()
) -> Tensor:
    """Finds the true cluster of each client, int64 `[clients]`; -1 for a client without examples.

    Args:
        clusters, owners: Cluster and owner of each example, int64 `[n]`.
        names: Names of the clients.
        words: Names of the clusters; empty = numbers.

    Raises:
        InputError: a client has examples of several clusters.
    """
    unknown = torch.full((len(names),), -1)
    low, high = (unknown.scatter_reduce(0, owners, clusters, how, include_self=False) for how in ("amin", "amax"))
    if len(mixed := (low != high).nonzero().flatten()):
        one, other = (repr(words[k]) if words else k for k in (int(low[mixed[0]]), int(high[mixed[0]])))
        more = f" ({len(mixed)} clients have several)" if len(mixed) > 1 else ""
        raise InputError(
            f"client {names[int(mixed[0])]} has examples of the true clusters {one} and {other}{more}; a client has "
            "only one: fix cluster, or leave it out"
        )
    return low


def _numbers(name: str, values: Any) -> np.ndarray:
    array = as_array(values, name)
    kinds = [(str(key), dtype.kind) for key, dtype in values.dtypes.items()] if hasattr(values, "columns") else []
    words = [key for key, kind in kinds if kind not in "iufb"]
    if array.dtype == object and kinds and not words:  # such as columns of bools and of floats
        array = np.column_stack(
            [scalars(values.iloc[:, k], f"column {key!r} of {name}") for k, (key, _) in enumerate(kinds)]
        )
    if array.dtype.kind not in "iufb" or (array.dtype == np.uint64 and array.size and array.max() > _LARGEST):
        remedy = f"leave out {', '.join(map(repr, words))}, or encode them" if words else "give integers or floats"
        raise InputError(f"{name} has dtype {array.dtype}; {remedy}")
    usual = {"f": np.float64, "b": np.float32}.get(array.dtype.kind, np.int64)
    kept = array.dtype.type in (np.uint8, np.int32, np.float16, np.float32)
    return np.require(array, array.dtype.type if kept else usual, ["C", "W"])  # a layout that torch can share


def _column(name: str, values: Any, *lengths: int) -> np.ndarray:
    array = scalars(values, name)
    if len(array) not in lengths:
        raise InputError(f"{name} has {len(array)} entries; give {' or '.join(str(length) for length in lengths)}")
    return array


def read_source(source: Path, columns: Mapping[str, str | None]) -> Mapping[str, np.ndarray]:
    """Reads arrays from a table, an `.npz` file, or a folder with one `.npz` file per client.

    Nothing is unpickled. For `columns` see `ArrayData`.
    """
    if _is_table(source):
        return read_table(source, columns)
    if not source.is_dir():
        return _read(source)
    files = sorted(source.glob("*.npz"))
    if not files:
        raise InputError(
            f"{source} holds no .npz file; give one for each client, with x, and y if you have it; or make one table "
            "of all clients, with a column of their names"
        )
    parts = [_read(file) for file in files]
    for file, part in zip(files, parts, strict=True):
        _require_alike(file, part, parts[0])
    sizes = [len(part["x"]) for part in parts]
    names = [name for name in ("x", "y", "is_test", "time") if name in parts[0]]
    joined: dict[str, np.ndarray] = {name: np.concatenate([part[name] for part in parts]) for name in names}
    joined["client"] = np.repeat([file.stem for file in files], sizes)
    if "cluster" in parts[0]:
        joined["cluster"] = np.repeat(np.concatenate([part["cluster"].reshape(1) for part in parts]), sizes)
    return joined


def _is_table(source: Path) -> bool:
    return source.suffix.lower() in ENDINGS


def _read(path: Path) -> dict[str, np.ndarray]:
    try:
        return read_npz(path, KEYS, required=("x",), no_others=True)
    except FileNotFoundError as error:
        raise InputError(
            f"{describe_missing(path, 'file or folder')}; give {_TABLE}, a .npz, or a folder of .npz"
        ) from error
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror or error})") from error
    except InputError as error:
        raise InputError(f"{error}; save it with np.savez, or give {_TABLE}") from error


def _require_alike(file: Path, part: Mapping[str, np.ndarray], first: Mapping[str, np.ndarray]) -> None:
    """Raises InputError unless a client's file fits the first file of its folder."""
    x, y, cluster = part["x"], part.get("y"), part.get("cluster")
    if not x.ndim or not x.size or (y is not None and y.shape[:1] != x.shape[:1]):
        labels = "" if y is None else f" and y of shape {y.shape}"
        raise InputError(f"{file} has x of shape {x.shape}{labels}; give x [n, ...] and y [n]")
    if "client" in part or (cluster is not None and cluster.size != 1):
        raise InputError(f"{file} is one client of a folder; leave out the array client, and give a single cluster")
    mine, others = (", ".join(map(_describe, one, one.values())) for one in (part, first))
    if mine != others:
        raise InputError(f"{file} holds {mine}, but the first file of the folder holds {others}; make them equal")


def _describe(name: str, array: np.ndarray) -> str:
    """Describes an array of one client: its kind and the shape of an example.

    Arrays of different kinds would be converted when they are joined: numbers to words, bytes to floats.
    """
    kind = array.dtype if name == "x" else _KINDS.get(array.dtype.kind, array.dtype)
    return f"{name} of {kind} {array.shape[1:] or ''}".strip()
