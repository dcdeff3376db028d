"""Tests that options are explained only if the parser refuses them, and how words are arranged before."""

import re
from collections.abc import Iterator, Mapping
from types import NoneType
from typing import Any, Literal, get_args, get_origin

import numpy as np
import pytest
from jsonargparse import ArgumentError

from lit_cfl.config import catalogue
from lit_cfl.config.build import option_parser, parse_options
from lit_cfl.config.explain import explain
from lit_cfl.config.files import read_config
from lit_cfl.config.live_options import option_names, options_of
from lit_cfl.config.merge import merge
from lit_cfl.config.parser import _OF_COMMAND
from lit_cfl.config.words import arrange
from lit_cfl.experiment import Experiment

PARSER = option_parser(frozenset())
QUICK = read_config(catalogue.configs()["quickstart"])


@pytest.mark.parametrize(
    ("words", "arranged"),
    [
        (["--seeds", "[0,", "1]"], ["--seeds=[0, 1]"]),
        (["--algorithm.eta_g", "-1e-3", "--tiny"], ["--algorithm.eta_g=-1e-3", "--tiny"]),
        (["--rounds", "-3", "--x", "-.inf"], ["--rounds=-3", "--x=-.inf"]),
        (["--tiny", "word", "--a", "1", "--config", "x", "y"], ["--config=x", "--tiny", "word", "--a=1", "y"]),
    ],
)
def test_values_are_joined_to_their_options_and_files_come_first(words: list[str], arranged: list[str]):
    assert arrange(words) == arranged


TEXTS = ("3", "0", "-1", "0.5", "1e-3", ".5", "null", "true", "True", "no", "on", "x", "auto", "a,b", "1 2", "", "~")
TEXTS += ("nan", ".inf", "1_000", "0x1F", "'3'", "2024-01-01", "[1, 2]", "[a]", "[]", "[[1, 2], [3]]", "[0.5, null]")
TEXTS += ("{a: 1}", "[a", "{epochs: 2}")


def drawn_words(rng: np.random.Generator) -> list[str]:
    """Draws classes for the quickstart, and values for some of its options."""
    words = []
    for option, kind in (("algorithm", "algorithms"), ("data", "data"), ("task.net", "nets"), ("task", "tasks")):
        if rng.random() < 0.4:
            words.append(f"--{option}={rng.choice(catalogue.names(kind))}")
    for option, kind in (("data.partition", "partitions"), ("data.skew", "skews"), ("data.shift", "shifts")):
        if rng.random() < 0.15:
            words.append(f"--{option}={rng.choice(catalogue.names(kind))}")
    given = merge(Experiment, [QUICK], words)
    names = list(option_names(Experiment, given))
    for option in map(str, rng.choice(names, rng.integers(1, 4), replace=False)):
        words.append(f"--{option}={rng.choice([*TEXTS, *literals_of(option, given)])}")
    return words


def literals_of(option: str, given: Mapping[str, Any]) -> Iterator[str]:
    """Yields the words that the annotation of an option lists, if its class takes plain values."""
    kind: Any = Experiment
    for part in option.split("."):
        found = options_of(kind).get(part) if isinstance(kind, type) else None
        kind = NoneType if found is None else found.kind
        given = given.get(part, {}) if isinstance(given, Mapping) else {}
    for member in get_args(kind) or (kind,):
        yield from map(str, get_args(member) if get_origin(member) is Literal else ())


@pytest.mark.parametrize("seed", range(4))
def test_what_the_parser_accepts_needs_no_explanation_and_what_it_refuses_gets_one(seed: int):
    rng = np.random.default_rng(seed)
    for _ in range(25):
        words = drawn_words(rng)
        given, error = merge(Experiment, [QUICK], words), None
        try:
            parse_options(PARSER, given)
        except (ArgumentError, TypeError, ValueError) as raised:
            error = str(raised)
        explained = explain(Experiment, given, _OF_COMMAND, "lit-cfl run")
        assert error is not None or explained is None, (words, explained)
        if not any(word.endswith(("=null", "=~")) for word in words):  # some are accepted until the class refuses them
            assert (error is None) == (explained is None), (words, error, explained)
        assert explained is None or ("\n" not in explained and re.match(r"[\w.]+|there is no", explained))
