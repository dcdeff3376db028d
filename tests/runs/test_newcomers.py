"""Tests that newcomers' labels are matched to those of the run by their names."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lit_cfl.data import Examples, View
from lit_cfl.datamodules import ArrayData
from lit_cfl.errors import InputError
from lit_cfl.runs.newcomers import match_examples, renumber_labels


def examples(labels: list[int], num_labels: int, *names: str, views: tuple[View, ...] = ()) -> Examples:
    inputs = torch.rand(len(labels), 2)
    options = {"views": views} if views else {}
    return Examples(inputs, torch.tensor(labels), num_labels, label_names=names, **options)


def test_labels_are_renumbered_by_their_names_as_a_run_numbers_them():
    run, new = examples([0], 4, "bike", "run", "sit", "walk"), examples([0, 1, 1, 0], 3, "sit", "walk", "swim")
    found = renumber_labels(new, run)  # no example has the label `swim`
    assert (found.labels.tolist(), found.num_labels, found.label_names) == ([2, 3, 3, 2], 4, run.label_names)
    assert found.inputs is new.inputs
    with pytest.raises(InputError, match=r"'swim'.* 'bike', 'run', 'sit', 'walk'"):
        renumber_labels(replace(new, labels=torch.tensor([0, 1, 2, 0])), run)
    with pytest.raises(InputError, match=r"'Walk '.* spell labels"):
        renumber_labels(replace(new, label_names=("sit", "Walk ", "run")), run)


def test_several_labels_of_each_example_must_have_names_that_the_run_knows():
    run = Examples(torch.zeros(1, 2), torch.tensor([[1.0, 0.0]]), 0, label_names=("cat", "dog"))
    other = replace(run, label_names=("cat", "owl"))
    assert renumber_labels(other, run) is other
    match_examples(run, run)
    with pytest.raises(InputError, match=r"'owl'.* 'cat', 'dog'"):
        match_examples(other, run)


@pytest.mark.parametrize("views", [(View(),), (View(label_map=(1, 0)),)])
def test_a_word_is_not_a_number(views: tuple[View, ...]):
    words = examples([0, 1], 2, "no", "yes", views=views)
    plain = replace(words, label_names=())
    for new, run, named in ((words, plain, "'no', 'yes'.* '0', '1'"), (plain, words, "'0', '1'.* 'no', 'yes'")):
        with pytest.raises(InputError, match=named):
            match_examples(new, run)


def test_false_and_true_are_words(tmp_path: Path):
    def table(*labels: str) -> Examples:
        (tmp_path / "own.csv").write_text("x,y\n" + "".join(f"{k},{label}\n" for k, label in enumerate(labels)))
        return ArrayData(source=tmp_path / "own.csv").pool().examples

    run, new = table("true", "maybe", "false"), table("false", "true")
    assert match_examples(new, run).labels.tolist() == [0, 2]


def test_a_number_is_the_label_that_is_written_so():
    run, numbers = examples([0], 4, "1", "2", "10", "x"), examples([2, 1, 10], 11)
    assert renumber_labels(numbers, run).labels.tolist() == [1, 0, 2]
    with pytest.raises(InputError, match=r"'3'.* '1', '2', '10', 'x'"):
        renumber_labels(replace(numbers, labels=torch.tensor([3, 1, 2])), run)
