"""Tests augmentation in local training: its distribution, equal results in every engine and cohort, and errors."""

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cohorts import made, plain_fit
from digits_experiment import digits, timeless_rows
from quadratic import ids
from ragged import LOCAL, PLANS, SHAPE, SIZES, fitted, ragged_data, rows_of, task
from torch import Tensor, nn
from torch.testing import assert_close

from lit_cfl import run
from lit_cfl.cli.main import main
from lit_cfl.data import Augment, Examples, FederatedData
from lit_cfl.data.augment import AugmentFunction, Batch
from lit_cfl.datamodules import ArrayData, Digits, Hybrid
from lit_cfl.engines.choose_plan import build_engine
from lit_cfl.engines.cohort import CohortFit, augment_examples, split_clients
from lit_cfl.engines.engine import Engine
from lit_cfl.engines.mini_batches import LocalTraining
from lit_cfl.engines.plan import Plan
from lit_cfl.errors import InputError
from lit_cfl.evaluation import EvaluationPlan
from lit_cfl.keyed_random import draw_keyed_uniform
from lit_cfl.local_work import Budget
from lit_cfl.nets import MLP, MNISTCNN

BOTH = Augment(crop=2, flip=True)
NETS: dict[str, Callable[[], nn.Module]] = {
    "mlp": lambda: MLP(12, SHAPE, 10),
    "cnn": lambda: nn.Sequential(MNISTCNN(SHAPE, 16), nn.Dropout(0.4), nn.Linear(16, 10)),
}
WAYS = {"chain": Plan("chain"), **{name: PLANS[name] for name in ("trainer", "plain loop", "4 lanes", "2 lanes")}}


def brighter(batch: Batch, keys: Tensor) -> Batch:
    """User augmentation: a random brightness for each example, and another label for some examples."""
    draws = draw_keyed_uniform(keys, 2)
    factors = draws[:, 0].to(batch[0].dtype).view(-1, *[1] * (batch[0].dim() - 1))
    return batch[0] * (0.5 + factors), torch.where(draws[:, 1] < 0.1, (batch[1] + 1) % 10, batch[1])


def augmented_data(augment: AugmentFunction | None = BOTH) -> FederatedData:
    data = ragged_data()
    return replace(data, examples=replace(data.examples, augment=augment))


# By hand


def windows(image: Tensor, augment: Augment) -> set[tuple[float, ...]]:
    """Returns all possible results of an augmentation: slices of the padded image, and their mirror images."""
    p, (height, width) = augment.crop, image.shape[1:]
    wide = nn.functional.pad(image, (p, p, p, p))
    found = [wide[:, y : y + height, x : x + width] for y in range(2 * p + 1) for x in range(2 * p + 1)]
    found += [window.flip(2) for window in found] if augment.flip else []
    return {tuple(window.flatten().tolist()) for window in found}


@pytest.mark.parametrize("augment", [Augment(1), Augment(0, True), Augment(2, True)], ids=str)
def test_every_window_of_the_padded_image_is_shown_and_no_other_as_often(augment: Augment):
    image = torch.arange(1.0, 2 * 4 * 3 + 1).view(2, 4, 3)
    count = 20_000
    changed, labels = augment((image.expand(count, -1, -1, -1), torch.arange(count)), torch.arange(count) << 32)
    assert torch.equal(labels, torch.arange(count))
    shown, counts = changed.flatten(1).unique(dim=0, return_counts=True)
    expected = windows(image, augment)
    assert {tuple(window.tolist()) for window in shown} == expected
    share = count / len(expected)
    assert (counts - share).abs().max() < 5 * share**0.5


def test_what_becomes_of_an_example_depends_on_its_key_alone():
    images, keys = torch.rand(5, 1, 6, 6), torch.tensor([7, 7 << 32, (7 << 32) + 1, -3, 7])
    whole = BOTH((images, keys), keys)[0]
    for k in range(5):
        assert torch.equal(BOTH((images[k : k + 1], keys[k : k + 1]), keys[k : k + 1])[0][0], whole[k])
    assert torch.equal(BOTH((images[[0, 0]], keys[[0, 4]]), keys[[0, 4]])[0][0], whole[0])
    assert len({tuple(BOTH((images[:1], keys[:1]), keys[k : k + 1])[0].flatten().tolist()) for k in range(4)}) > 1


def test_zeros_outside_stay_zeros_next_to_infinite_pixels():
    images = torch.full((50, 1, 4, 4), torch.inf)
    assert set(BOTH((images, ids(*range(50))), torch.arange(50))[0].unique().tolist()) == {0.0, torch.inf}


# The mini-batches that clients train on


def work_of(
    engine: Engine, data: FederatedData, round: int = 2, clients: Tensor | None = None, weights: Tensor | None = None
) -> CohortFit:
    """Returns the `CohortFit` that the engine's way of training receives for these clients."""
    clients = ids(*range(len(SIZES))) if clients is None else clients
    clients, seen = clients[data.num_examples[clients] > 0], []
    loop = engine.way
    fit = loop.fit
    loop.fit = lambda work, ended: seen.append(work) or fit(work, ended)  # type: ignore[method-assign,func-returns-value]
    engine.at(round, data).fit(engine.initial(0)[None], clients, weights=weights).rows  # noqa: B018
    loop.fit = fit  # type: ignore[method-assign]
    (work,) = seen
    return work


def engine_of(net: str = "mlp", plan: Plan = Plan("loop"), local: LocalTraining = LOCAL) -> Engine:
    return build_engine(task(NETS[net]), plan, 5, local)


def test_mini_batches_are_those_without_augmentation_changed_one_by_one():
    weights = torch.arange(sum(SIZES)) / 100
    plain, changed = (work_of(engine_of(), augmented_data(augment), weights=weights) for augment in (None, BOTH))
    assert plain.weights is not None
    assert changed.weights is not None
    assert torch.equal(changed.steps, plain.steps)
    assert torch.equal(changed.num_seen, plain.num_seen)
    assert changed.sizes.tolist() == plain.num_seen.tolist()
    lists, own = plain.batches.lists(), changed.batches.lists()
    seen = []
    for client, (start, mine, first) in enumerate(zip(plain.starts, changed.starts, plain.first_steps, strict=True)):
        for step in range(first, first + int(plain.steps[client])):
            before, after = plain.inputs[start + lists[step]], changed.inputs[mine + own[step]]
            assert torch.equal(changed.labels[mine + own[step]], plain.labels[start + lists[step]])
            assert torch.equal(changed.weights[mine + own[step]], plain.weights[start + lists[step]])
            assert all(tuple(b.flatten().tolist()) in windows(a, BOTH) for a, b in zip(before, after, strict=True))
            seen += [not torch.equal(a, b) for a, b in zip(before, after, strict=True)]
    assert 0.9 < np.mean(seen) < 1  # some of the images stay unchanged, about one of 50


def test_changes_differ_by_round_client_purpose_step_and_place():
    image = torch.arange(1.0, 65).view(1, 1, 8, 8)
    pool = Examples(image.expand(40, -1, -1, -1), torch.zeros(40, dtype=torch.int64), 2, augment=BOTH)
    data = replace(ragged_data((20, 20)), examples=pool)
    engine = build_engine(task(NETS["mlp"]), Plan("loop"), 5, LocalTraining(2, 20))
    first = work_of(engine, data, clients=ids(0, 1))
    parts = [*first.inputs.split(20), *work_of(engine, data, round=3, clients=ids(0, 1)).inputs.split(20)]
    assert len(parts) == 8  # two clients, each with two epochs of one step, in two rounds
    assert all(len(part.unique(dim=0)) > 5 for part in parts)
    ordered = [part.flatten(1).sort(0).values for part in parts]
    assert len({tuple(part.flatten().tolist()) for part in ordered}) == 8
    tuned = engine.at(2, data).fit(engine.initial(0)[None], ids(0, 1), purpose="fine-tune").rows
    assert not torch.equal(tuned, engine.at(2, data).fit(engine.initial(0)[None], ids(0, 1)).rows)


def test_blocks_change_no_bit(monkeypatch: pytest.MonkeyPatch):
    whole = work_of(engine_of(), augmented_data()).inputs
    monkeypatch.setattr("lit_cfl.engines.cohort._BLOCK", 200)
    assert torch.equal(work_of(engine_of(), augmented_data()).inputs, whole)


def test_work_without_keys_is_a_fault_of_ours():
    with pytest.raises(TypeError, match="augment_keys"):
        augment_examples(work_of(engine_of(), augmented_data(None)), BOTH)


# One result


PAIRS = [(net, plan) for net in NETS for plan in WAYS if plan != "chain"]  # chains: the table of ways


@pytest.mark.nightly
@pytest.mark.parametrize(("pair", "augment"), list(product(PAIRS, [BOTH, brighter])))
def test_every_way_trains_on_the_same_changed_examples(pair: tuple[str, str], augment: AugmentFunction):
    net, plan = pair
    engine = build_engine(task(NETS[net]), Plan("loop", precision="64-true"), 5, LOCAL)
    work = work_of(engine, augmented_data(augment))
    module, layout = made(task(NETS[net]))
    expected, losses = plain_fit(module, layout, work)
    found = build_engine(task(NETS[net]), replace(WAYS[plan], precision="64-true"), 5, LOCAL)
    fit = found.at(2, augmented_data(augment)).fit(found.initial(0)[None], ids(1, 2, 3, 4, 5))
    assert_close(fit.rows, expected, rtol=0, atol=1e-12)
    assert_close(fit.losses, losses, rtol=0, atol=1e-12)


@pytest.mark.parametrize("plan", ["chain", "plain loop", "4 lanes"])
@pytest.mark.parametrize(
    "local", [LocalTraining(3, 10), LocalTraining(2, 7, last_batch="drop"), LocalTraining(3, "full")]
)
def test_order_company_and_chunks_of_clients_change_no_bit(plan: str, local: LocalTraining):
    def fit(clients: Tensor) -> Tensor:
        return rows_of(fitted(task(NETS["mlp"]), WAYS[plan], local=local, clients=clients, data=augmented_data())[0])

    whole = fit(ids(0, 1, 2, 3, 4, 5))
    assert torch.equal(fit(ids(3, 0, 5, 1)), whole[[3, 0, 5, 1]])
    assert torch.equal(fit(ids(2)), whole[[2]])
    small = replace(WAYS[plan], rows_mib=1)
    engine = build_engine(task(NETS["mlp"]), small, 5, local)
    engine._split = lambda sizes, data: split_clients(sizes, 1, 9)  # type: ignore[method-assign]  # a client at a time
    models = torch.stack([engine.initial(number) for number in range(3)])
    clients = ids(0, 1, 2, 3, 4, 5)
    assert torch.equal(engine.at(2, augmented_data()).fit(models, clients, clients % 2).rows, whole)


def test_parts_are_cut_by_the_examples_of_all_mini_batches():
    engine, data = engine_of(local=LocalTraining(3, 10)), augmented_data()
    engine._split = lambda sizes, data: split_clients(sizes, 80, 9)  # type: ignore[method-assign]  # some
    sizes = []
    fit = engine.way.fit
    engine.way.fit = lambda work, ended: sizes.append(len(work.inputs)) or fit(work, ended)  # type: ignore[method-assign,func-returns-value]
    engine.at(2, data).fit(engine.initial(0)[None], ids(1, 2, 4, 5)).rows  # noqa: B018
    assert sizes == [3 * (3 + 17), 3 * 9, 3 * 20]
    assert engine.at(2, data).costs.steps == 0


# Nowhere else


def test_losses_gradients_scores_and_statistics_see_the_unaugmented_data():
    engine, clients = engine_of(), ids(1, 3)
    model, seen = engine.initial(0), []
    for augment in (None, BOTH):
        data = augmented_data(augment)
        work = engine.at(2, data)
        outcomes = engine.outcomes(model, data.train[3], data)
        found = [work.losses(model[None], clients), work.gradients(model, clients), outcomes.losses]
        seen.append([*found, *work.map(lambda inputs, labels: inputs.sum((1, 2, 3)), clients)])
    assert all(torch.equal(one, other) for one, other in zip(*seen, strict=True))


def test_loaders_of_the_data_module_do_not_change_examples():
    plain, changed = Digits(), Digits(augment=BOTH)
    batches = []
    for module in (plain, changed):
        module.setup()
        batches.append(next(iter(module.test_dataloader())))
    assert torch.equal(batches[0][0], batches[1][0])


# Runs


def experiment(**changes: Any) -> Any:
    return digits(**({"data": Digits(num_clients=12, validation=0.1, augment=Augment(1, True))} | changes))


def test_a_run_trains_otherwise_with_it_and_resumes_to_the_bit(tmp_path: Path):
    tuned = EvaluationPlan(fine_tune=Budget(1))
    whole = run(experiment(rounds=4, evaluation=tuned), tmp_path / "whole").path
    run(experiment(rounds=2, evaluation=tuned), tmp_path / "parts")
    run(experiment(rounds=4, evaluation=tuned), tmp_path / "parts", mode="resume")
    assert timeless_rows(tmp_path / "parts") == timeless_rows(whole)
    plain = run(digits(rounds=4, evaluation=tuned), tmp_path / "plain").path
    assert timeless_rows(plain)[-1]["train/loss"] != timeless_rows(whole)[-1]["train/loss"]
    assert timeless_rows(plain)[-1]["local/examples"] == timeless_rows(whole)[-1]["local/examples"]


@pytest.mark.ray
def test_workers_change_no_bit(tmp_path: Path):
    from lit_cfl.experiment import PlanOptions

    alone = run(experiment(plan=PlanOptions(engine="loop")), tmp_path / "alone").path
    shared = run(experiment(plan=PlanOptions(engine="loop", workers=2)), tmp_path / "shared").path
    assert timeless_rows(shared) == timeless_rows(alone)


def test_configuration_and_command_line_name_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    words = ["run", "--config", "quickstart", "--baseline", "null", "--tiny", "--quiet"]
    last = {}
    for name, options in {
        "plain": [],
        "options": ["--data.augment.crop", "1", "--data.augment.flip", "true"],
        "own": ["--data.augment", f"{__name__}.brighter"],
        "none": ["--data.augment", "null"],
    }.items():
        assert main([*words, *options, "--run_dir", str(tmp_path / name)]) == 0
        last[name] = timeless_rows(tmp_path / name)
    assert last["none"] == last["plain"]
    assert last["options"] != last["plain"] != last["own"] != last["options"]
    assert f"augment: {__name__}.brighter" in (tmp_path / "own" / "config.yaml").read_text()
    assert main(["run", "--resume", str(tmp_path / "own"), "--quiet"]) == 0
    assert main([*words, "--data.augment.crop", "8", "--run_dir", str(tmp_path / "bad")]) == 2
    assert "data.augment.crop is 8, but images have 8 x 8 pixels; give less than 8" in capsys.readouterr().err
    assert main([*words, "--data.augment.crp", "8", "--run_dir", str(tmp_path / "bad")]) == 2
    assert "data.augment has no option 'crp' (did you mean crop?)" in capsys.readouterr().err
    assert main([*words, "--data.augment.crop", "big", "--run_dir", str(tmp_path / "bad")]) == 2
    assert "data.augment.crop is 'big'; give a whole number" in capsys.readouterr().err
    assert not (tmp_path / "bad").exists()


# What cannot be


@pytest.mark.parametrize(
    ("augment", "message"),
    [
        (lambda: Augment(-1), "data.augment.crop is -1; give 0 or more pixels"),
        (lambda: Augment(), "data.augment changes nothing; give crop: 4, flip: true, or leave it out"),
        (lambda: 4, "data.augment is 4; give {crop: 4, flip: true}, or a function of a batch and its keys, such as "
                    "my_module.function"),
        (lambda: "nowhere.change", "data.augment names 'nowhere.change', which cannot be imported: Module"),
        (lambda: "math.pi", "data.augment is 3.141592653589793; give"),
        (lambda: "crop", "data.augment is 'crop'; give {crop: 4, flip: true}, or a function"),
    ],
)  # fmt: skip
def test_an_invalid_augmentation_is_refused(augment: Callable[[], Any], message: str):
    with pytest.raises(InputError) as error:
        Digits(augment=augment())
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.zeros((4, 5)), "but inputs have shape (5,); leave it out, or give a function of your own"),
        (np.zeros((4, 1, 2, 9)), "data.augment.crop is 2, but images have 2 x 9 pixels; give less than 2"),
    ],
)
def test_only_images_larger_than_the_crop_can_be_cropped(x: np.ndarray, message: str):
    with pytest.raises(InputError) as error:
        _ = ArrayData(x, [0, 1, 0, 1], augment=BOTH).examples
    assert message in str(error.value)


def test_token_ids_are_not_augmented_as_images():
    tokens = torch.zeros(4, 1, 8, 8, dtype=torch.int32)
    with pytest.raises(InputError, match="crops and flips images"):
        Examples(tokens, torch.zeros(4, dtype=torch.int64), 2, vocabulary=9, augment=BOTH)


def test_parts_of_a_hybrid_have_none_of_their_own():
    with pytest.raises(InputError, match=r"augment is Augment\(crop=2, flip=True\) in parts.1. .Digits., where"):
        Hybrid([Digits(), Digits(augment=BOTH)])
    assert Hybrid([Digits(), Digits()], augment=BOTH).examples.augment is BOTH


@pytest.mark.parametrize(
    ("augment", "message"),
    [
        (lambda batch, keys: batch[0], "data.augment returned Tensor for a batch of"),
        (lambda batch, keys: (batch[0][:, :, 1:], batch[1]), r"returned \['torch.float32 \(10, 1, 7, 8\)'"),
        (lambda batch, keys: (batch[0].double(), batch[1]), r"returned \['torch.float64 \(10, 1, 8, 8\)'"),
        (lambda batch, keys: (batch[0] + torch.rand(1), batch[1]), "changes an example differently when called again"),
        (lambda batch, keys: (batch[0] + batch[0].mean(), batch[1]), "or together with other examples; draw the"),
        (lambda batch, keys: (batch[0] @ keys, batch[1]), "data.augment cannot change the examples: RuntimeError"),
    ],
)  # fmt: skip
def test_functions_that_could_not_be_the_same_everywhere_are_refused(augment: AugmentFunction, message: str):
    with pytest.raises(InputError, match=message):
        digits(data=Digits(num_clients=12, augment=augment)).prepare(0)
