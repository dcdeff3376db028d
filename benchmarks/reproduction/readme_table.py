"""Fills the README's table of algorithms with the papers' numbers and ours, from the tables in `docs/reproduction`.

    python -m benchmarks.reproduction.readme_table

Each algorithm has one cell: the first row of its paper's table (MNIST-MCLR), or its smallest setting in StoCFL's paper.
The rule does not depend on results, but was made after FlexCFL's first row had run. The other columns of the table stay
unchanged. `tests/benchmarks/reproduction/test_summary.py` uses the same functions.
"""

import re
from pathlib import Path

from benchmarks.reproduction.cells import table_names
from benchmarks.reproduction.files import Row
from lit_cfl.storage import read_table

ROOT = Path(__file__).resolve().parents[2]
README, TABLES = ROOT / "README.md", ROOT / "docs" / "reproduction"
CELLS = {
    "FedAvg": "flexcfl-t3-mnist-mclr-fedavg-max_weighted_test_accuracy",
    "FedProx": "flexcfl-t3-mnist-mclr-fedprox-max_weighted_test_accuracy",
    "Ditto": "stocfl-t1-rotated_mnist_k_4-mlp_2048-ditto-test_accuracy-n1200-d200-p10",
    "FedGroup": "fedgroup-tiii-mnist-mclr-fedgroup_edc-max_weighted_test_accuracy",
    "FedGrouProx": "fedgroup-tiii-mnist-mclr-fedgrouprox_edc-max_weighted_test_accuracy",
    "FlexCFL": "flexcfl-t3-mnist-mclr-flexcfl-max_weighted_test_accuracy",
    "IFCA": "flexcfl-t3-mnist-mclr-ifca-max_weighted_test_accuracy",
    "FeSEM": "flexcfl-t3-mnist-mclr-fesem-max_weighted_test_accuracy",
    "CFL": "stocfl-t2-shifted_mnist-mlp_2048-cfl-test_accuracy-n20-d9600",
    "StoCFL": "stocfl-t1-rotated_mnist_k_4-mlp_2048-stocfl-test_accuracy-n1200-d200-p10",
}  # other algorithms are missing, since their papers have no table of accuracies
REASONS = {  # reasons for numbers that are not reproduced
    "Ditto": "the paper does not give lambda",
    "CFL": "the paper gives neither rounds nor batch size",
}
ROW = re.compile(r"^\| (?P<name>\w+) (?P<kept>(?:\|[^|]*){4})\|[^|]*\|[^|]*\|$", re.MULTILINE)


def insert_numbers(readme: str, folder: Path) -> str:
    """Returns the README with the last two columns of its table filled from the tables in a folder."""
    rows = {row["id"]: (name, row) for name in table_names() for row in read_table(folder / f"{name}.csv")}

    def line(found: re.Match[str]) -> str:
        name = found["name"]
        paper, ours = format_numbers(*rows[CELLS[name]], name) if name in CELLS else ("-", "-")
        return f"| {name} {found['kept']}| {paper} | {ours} |"

    head, mark, table = readme.partition("| Algorithm |")
    body, end, rest = table.partition("\n\n")
    return head + mark + ROW.sub(line, body) + end + rest


def format_numbers(table: str, row: Row, algorithm: str) -> tuple[str, str]:
    """Returns the paper's number with its source, and ours with spread, number of seeds, verdict and reason."""
    model = f", {row['model']}" if row["model"] else ""
    paper = f"{row['paper_value']:.1f} ([{table}](docs/reproduction/{table}.md): {row['dataset']}{model})"
    if row["ours_mean"] is None:
        return paper, "not run yet"
    spread = "" if row["ours_std"] is None else f" ± {row['ours_std']:.1f}"
    seeds = "one seed" if row["seeds"] == 1 else f"{row['seeds']} seeds"
    option = f", {row['option_mean']:.1f} by the published options" if row["verdict"] == "explained" else ""
    reason = f" ({REASONS[algorithm]})" if row["verdict"] == "not reproduced" else ""
    return paper, f"{row['ours_mean']:.1f}{spread} ({seeds}): {row['verdict']}{option}{reason}"


def main() -> None:
    README.write_text(insert_numbers(README.read_text("utf-8"), TABLES), "utf-8")


if __name__ == "__main__":
    main()
