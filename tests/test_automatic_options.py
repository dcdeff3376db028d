"""Tests that every option that takes the word `auto` refuses a word or number that only looks like it."""

from dataclasses import fields, is_dataclass
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest

from lit_cfl import Experiment, algorithms
from lit_cfl.algorithms import Algorithm
from lit_cfl.config.parser import parse_run
from lit_cfl.errors import InputError
from lit_cfl.tune.study import Study

ALGORITHMS = [getattr(algorithms, name) for name in algorithms.__all__]
KINDS = [kind for kind in ALGORITHMS if issubclass(kind, Algorithm) and kind is not Algorithm]


def words_of(annotation: Any) -> set[Any]:
    inner = set(get_args(annotation)) if get_origin(annotation) is Literal else set()
    return inner.union(*map(words_of, get_args(annotation))) if get_origin(annotation) is not Literal else inner


def options_with_auto(kind: type, prefix: str = "") -> list[str]:
    """Lists the options of a dataclass, and of the dataclasses that it takes, that may be `auto`."""
    found, hints = [], get_type_hints(kind)
    for field in fields(kind):
        hint, name = hints[field.name], f"{prefix}{field.name}"
        if "auto" in words_of(hint) or (isinstance(field.default, str) and field.default == "auto"):
            found.append(name)
        for one in (hint, *get_args(hint)):
            found += options_with_auto(one, f"{name}.") if is_dataclass(one) else []
    return found


OF_ALGORITHMS = [(kind, option) for kind in KINDS for option in options_with_auto(kind)]


def test_options_with_auto_are_found():
    names = {(kind.__name__, option) for kind, option in OF_ALGORITHMS}
    number = ("FedEM", "FedGroup", "FedGrouProx", "FeSEM", "FlexCFL", "FLHC", "FLUX", "IFCA")
    assert names == {(name, "num_clusters") for name in number} | {("LayerCFL", "layers")}
    assert options_with_auto(Experiment) == ["engine", "device"]
    assert options_with_auto(Study) == []


@pytest.mark.parametrize("given", ["atuo", 2.5])
@pytest.mark.parametrize(("kind", "option"), OF_ALGORITHMS, ids=lambda one: getattr(one, "__name__", one))
def test_an_algorithm_refuses_what_is_not_auto(kind: type[Algorithm], option: str, given: object):
    with pytest.raises(InputError, match=rf"^{option} is {given!r}.*auto"):
        kind(**{option: given})


@pytest.mark.parametrize("given", ["atuo", 2.5])
@pytest.mark.parametrize("option", options_with_auto(Experiment))
def test_an_experiment_refuses_what_is_not_auto(option: str, given: Any):
    with pytest.raises(InputError, match=rf"{option}.*{given}.*auto"):
        parse_run(["--config", "quickstart", f"--{option}", str(given)]).experiment.prepare(0)
