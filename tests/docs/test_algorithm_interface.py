"""Tests the page on the algorithm interface: its example prints the shown output, and its tables are complete."""

import re
from dataclasses import fields
from pathlib import Path
from types import FunctionType

import pytest

from lit_cfl.algorithms import Algorithm, Info
from lit_cfl.local_work import Fitted, LocalWork
from lit_cfl.parameters import ParameterLayout, Slot

PAGE = (Path(__file__).parents[2] / "docs" / "algorithm_interface.md").read_text()


def named_in(heading: str) -> set[str]:
    """Returns the names in the first column of the tables under a heading, up to the next heading of any level."""
    text = re.split(r"\n#+ ", PAGE.partition(f"{heading}\n")[2])[0]
    cells = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    return {name for cell in cells for name in re.findall(r"`(\w+)", cell)}


def public(kind: type) -> set[str]:
    return {name for name in vars(kind) if not name.startswith("_")}


def test_example_prints_what_the_page_says(capsys: pytest.CaptureFixture[str]):
    (code,), (shown,) = (re.findall(rf"```{kind}\n(.*?)```", PAGE, flags=re.DOTALL) for kind in ("python", "text"))
    exec(compile(code, "algorithm_interface.md", "exec"), {})  # noqa: S102  # our own documentation
    assert capsys.readouterr().out == shown


def test_every_request_and_fact_is_listed():
    of_rounds = {"costs", "bytes_up"}  # members that only the round loop reads
    options = {name for name in LocalWork.fit.__annotations__ if name not in ("models", "clients", "start", "return")}
    assert named_in("## Ask: `work`") == public(LocalWork) - of_rounds | options


def test_every_attribute_of_a_fit_is_listed():
    assert named_in("### A fit's result: `Fitted`") == public(Fitted) - {"on_device"}


def test_documented_attributes_of_a_layout_are_the_existing_ones():
    listed = named_in("### Layers: `work.layout`")
    assert listed - {"name", "layer", "kind", "shape"} <= public(ParameterLayout) | {"slots"}
    (cell,) = re.findall(r"for each tensor: (.*?) \|", PAGE)
    assert re.findall(r"`(\w+)`", cell) == [one.name for one in fields(Slot)]


def test_every_field_of_an_info_is_listed():
    assert named_in("## Return") == {one.name for one in fields(Info)}


def test_every_hook_is_listed():
    main = {"init", "round", "place", "serve"}
    hooks = {name for name in public(Algorithm) if isinstance(vars(Algorithm)[name], (FunctionType, property))}
    declared = set(Algorithm.__annotations__) | hooks
    assert named_in("## Declare") == declared - main
