"""`lit-cfl data --check-hub`: checks that the Hugging Face Hub still has the data sets of our data modules.

Run it where there is a network: the data modules were only tried on local copies.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lit_cfl.datamodules.loading import quiet
from lit_cfl.errors import InputError

_SECONDS = 20.0  # time for the Hub to answer


@dataclass(frozen=True)
class Expected:
    """The expected content of a data set on the Hub.

    Args:
        source: Id of the data set.
        columns: Columns to read.
        rows: Rows of each split.
        revision: Branch to read if the main one holds a script.
    """

    source: str
    columns: tuple[str, ...]
    rows: Mapping[str, int] = field(default_factory=dict)
    revision: str | None = None


EXPECTED = {
    "MNIST": Expected("ylecun/mnist", ("image", "label"), {"train": 60_000, "test": 10_000}),
    "FashionMNIST": Expected("zalandoresearch/fashion_mnist", ("image", "label"), {"train": 60_000, "test": 10_000}),
    "CIFAR10": Expected("uoft-cs/cifar10", ("img", "label"), {"train": 50_000, "test": 10_000}),
    "EMNISTLetters": Expected("tanganke/emnist_letters", ("image", "label"), {"train": 124_800, "test": 20_800}),
    "FEMNIST": Expected("flwrlabs/femnist", ("image", "writer_id", "character"), {"train": 814_277}),
    "Sent140": Expected(
        "stanfordnlp/sentiment140", ("text", "user", "sentiment"), {"train": 1_600_000}, "refs/convert/parquet"
    ),
}


def check_hub() -> int:
    """Prints a line for each data set: its commit, and any differences. Returns 1 if there are any.

    Raises:
        InputError: the Hub cannot be reached.
    """
    different = False
    for name, expected in EXPECTED.items():
        with quiet():
            commit, found = _differences(expected)
        different |= bool(found)
        print(f"{name:<14} {expected.source} {commit or '(no commit)'}: {'; '.join(found) or 'as expected'}")
    return int(different)


def _differences(expected: Expected) -> tuple[str | None, list[str]]:
    """Compares a data set with the expected one; returns its commit and the differences."""
    import datasets
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    source, revision = expected.source, expected.revision
    try:
        commit = HfApi().dataset_info(source, revision=revision, timeout=_SECONDS).sha
    except HfHubHTTPError as error:  # the Hub answers, but not with this data set
        return None, [str(error).strip().splitlines()[0]]
    except Exception as error:  # its client may raise anything without a network
        reason = f"{type(error).__name__}: {(str(error).strip() or 'no answer').splitlines()[0]}"
        raise InputError(
            f"the Hugging Face Hub cannot be reached from here ({reason}); "
            "run lit-cfl data --check-hub where there is a network"
        ) from error
    try:
        info = datasets.load_dataset_builder(source, revision=revision).info
    except Exception as error:  # `datasets` raises nearly anything
        return commit, [f"it cannot be opened ({type(error).__name__}: {str(error).strip().splitlines()[0]})"]
    return commit, compare(
        expected, info.features or {}, {name: part.num_examples for name, part in (info.splits or {}).items()}
    )


def compare(expected: Expected, columns: Mapping[str, Any], rows: Mapping[str, int]) -> list[str]:
    """Lists differences: missing columns, and splits of another size.

    Args:
        columns: Features of the Hub copy by name; empty if the Hub does not report them.
        rows: Rows of each split; empty if the Hub does not report them.
    """
    missing = [name for name in expected.columns if columns and name not in columns]
    found = [f"no column {name!r} (it has {', '.join(columns)})" for name in missing]
    for split, count in expected.rows.items():
        if rows and rows.get(split) != count:
            found.append(f"split {split!r} has {rows.get(split, 0):,} rows, {count:,} are expected")
    if not columns or not rows:
        found.append("the Hub does not say its columns or sizes")
    return found
