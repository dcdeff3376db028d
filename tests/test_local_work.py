"""One contract of `LocalWork`, asked of `QuadraticWork` and of engines alike: answers, their order, and what they cost.

Every client has the loss 1/2 |w - c|^2, in the engines by a net whose examples are all c. So each answer is known by
arithmetic, and each cost by counting. Sizes, starts, centres and lengths differ, and clients without data are in front
of others and between them.
"""

from collections.abc import Callable
from dataclasses import replace
from math import isnan
from typing import Any

import pytest
import torch
from inside_training import make_work
from lightning import LightningModule
from quadratic import ids
from ragged import clients_of
from torch import Tensor, nn
from torch.testing import assert_close

from lit_cfl.aggregation import discrepancy, mean_by_cluster
from lit_cfl.algorithms import FedAvg
from lit_cfl.data import Examples, FederatedData
from lit_cfl.engines import round_work
from lit_cfl.experiment import LocalTraining
from lit_cfl.local_work import Budget, LocalCosts, LocalWork
from lit_cfl.rounds import Cohorts, rounds
from lit_cfl.testing import QuadraticWork

SIZES = ids(0, 3, 5, 0, 2, 4)
COUNTS = torch.tensor([[0, 0], [1, 2], [5, 0], [0, 0], [0, 2], [3, 1]])  # examples of each label
ETA, STEPS, ROUND = 0.25, 3, 2
EVERYONE = ids(0, 1, 2, 3, 4, 5)
MIXED = ids(2, 0, 4, 3, 5, 1)  # a cycle, so that no permutation is its own inverse
KINDS = ("quadratic", "loop", "trainer")


def eighths(*shape: int, seed: int) -> Tensor:
    """Draws numbers that float32 represents exactly, as inputs of examples are float32."""
    return torch.randint(-24, 25, shape, generator=torch.Generator().manual_seed(seed)).double() / 8


CENTERS, MODELS, PULLS = eighths(6, 4, seed=1), eighths(3, 4, seed=2), eighths(2, 4, seed=3)


class Layer(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(size))


class Distance(LightningModule):
    """Model w of which each example x has the loss 1/2 |x - w|^2."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.fc1 = Layer(width // 2), Layer(width - width // 2)

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs - torch.cat([self.conv1.weight, self.fc1.weight])

    def losses(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        return self(batch[0]).square().sum(1) / 2

    def outcomes(self, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return self(batch[0]).square().sum(1) / 2, batch[1] == 0

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        return self.losses(batch).mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=ETA)


def make_clients(kind: str, centers: Tensor = CENTERS, chunk: int | None = None) -> Any:
    """Makes the clients of the contract: by closed forms, or by an engine that trains in this way."""
    if kind == "quadratic":
        return QuadraticWork(
            centers, SIZES, ETA, label_counts=COUNTS, steps=STEPS, skew="label", chunk_size=chunk,
            true_clusters=ids(0, 1, 0, 1, 0, 1),
        )  # fmt: skip
    local = LocalTraining(STEPS, "full")
    mib = 1024 if chunk is None else chunk * centers.shape[1] * 8 // 2**20
    return make_work(kind, lambda: Distance(centers.shape[1]), data_of(centers), local, mib)


def data_of(centers: Tensor = CENTERS) -> FederatedData:
    labels = torch.cat([ids(0, 1).repeat_interleave(counts) for counts in COUNTS])
    examples = Examples(centers.float().repeat_interleave(SIZES, 0), labels, 2)
    return replace(clients_of(examples, SIZES.tolist()), true_clusters=ids(0, 1, 0, 1, 0, 1), skew="label")


def work_of(kind: str, **options: Any) -> LocalWork:
    return make_clients(kind, **options).at(ROUND, data_of(options.get("centers", CENTERS)))


def train(start: Tensor, center: Tensor, steps: int, prox: float = 0.0, pull: Tensor | float = 0.0, share: float = 1.0):
    for _ in range(steps):
        start = start - ETA * (share * (start - center) + prox * (start - pull))
    return start


def loss(model: Tensor, client: int) -> float:
    return float((model - CENTERS[client]).square().sum() / 2)


def costs_of(work: LocalWork) -> tuple[int, int, int]:
    return work.costs.steps, work.costs.examples, work.costs.scored


pytestmark = pytest.mark.parametrize("kind", KINDS)


def test_what_is_known_of_clients(kind: str):
    work = work_of(kind)
    assert (work.round, work.skew, work.layout.num_columns) == (ROUND, "label", 4)
    assert work.layout.layers == ("conv1", "fc1")
    assert work.population.tolist() == EVERYONE.tolist()
    assert work.num_examples.tolist() == SIZES.tolist()
    assert work.label_counts.tolist() == COUNTS.tolist()
    assert work.true_clusters.tolist() == [0, 1, 0, 1, 0, 1]
    assert (work.budget.length, work.budget.unit) == (STEPS, "epochs")
    assert (costs_of(work), work.bytes_up) == ((0, 0, 0), 0)


def test_initial_models_follow_from_their_number(kind: str):
    first, again, other = (work_of(kind).initial(number) for number in (0, 0, 1))
    assert first.shape == (4,)
    assert first.dtype == torch.float64
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_clients_train_from_their_own_models_in_the_requested_order(kind: str):
    start, models = ids(1, 0, 2, 2, 0, 1), MODELS.clone()
    work = work_of(kind)
    found = work.fit(models, MIXED, start)
    for row, client, own in zip(found.rows, MIXED.tolist(), start.tolist(), strict=True):
        assert_close(row, train(MODELS[own], CENTERS[client], STEPS if SIZES[client] else 0), rtol=0, atol=1e-13)
    assert found.trained.tolist() == [True, False, True, False, True, True]
    assert found.skipped == 2
    assert found.losses.isnan().tolist() == [False, True, False, True, False, False]
    assert torch.equal(models, MODELS)
    assert costs_of(work) == (STEPS * 4, STEPS * (5 + 2 + 4 + 3), 0)


def test_each_client_has_its_centre_and_length(kind: str):
    work, lengths, start, center = work_of(kind), ids(2, 3, 0, 1, 4, 1), ids(1, 0, 2, 2, 0, 1), ids(1, 0, 0, 1, 0, 1)
    found = work.fit(MODELS, MIXED, start, prox=0.5, centers=PULLS, center=center, budget=Budget(lengths, "steps"))
    asked = zip(MIXED.tolist(), start.tolist(), center.tolist(), lengths.tolist(), strict=True)
    for row, (client, own, pull, steps) in zip(found.rows, asked, strict=True):
        steps = steps if SIZES[client] else 0
        assert_close(row, train(MODELS[own], CENTERS[client], steps, 0.5, PULLS[pull]), rtol=0, atol=1e-13)
    assert found.trained.tolist() == [True, False, False, False, True, True]
    assert costs_of(work) == (2 + 4 + 1, 2 * 5 + 4 * 4 + 1 * 3, 0)


def test_a_client_may_train_several_models(kind: str):
    work = work_of(kind)
    found = work.fit(MODELS, ids(1, 0, 1, 5, 1), ids(2, 0, 0, 1, 2))
    for position, (client, own) in {0: (1, 2), 2: (1, 0), 3: (5, 1), 4: (1, 2)}.items():
        assert_close(found.rows[position], train(MODELS[own], CENTERS[client], STEPS), rtol=0, atol=1e-13)
    assert costs_of(work) == (STEPS * 4, STEPS * (3 + 3 + 4 + 3), 0)


def test_losses_of_a_fit_are_those_of_its_steps_weighted_by_examples(kind: str):
    found = work_of(kind).fit(MODELS, ids(1, 3, 2, 4), ids(0, 0, 1, 2), budget=Budget(1))
    expected = [loss(MODELS[0], 1), loss(MODELS[1], 2), loss(MODELS[2], 4)]
    assert_close(found.losses[ids(0, 2, 3)], torch.tensor(expected).double(), rtol=1e-13, atol=0)
    assert found.loss == pytest.approx((3 * expected[0] + 5 * expected[1] + 2 * expected[2]) / 10, rel=1e-13)


def test_weights_are_factors_of_the_losses_of_examples(kind: str):
    weights = torch.tensor([0.0, 1.0, 2.0, 0.5, 0.5, 3.0, 1.0])  # of clients 2 and 4
    shares = {2: 0.8, 4: 2.0}
    found = work_of(kind).fit(MODELS, ids(0, 2, 3, 4), 1, weights=weights, budget=Budget(1), prox=0.5, centers=PULLS)
    for position, client in ((1, 2), (3, 4)):
        expected = train(MODELS[1], CENTERS[client], 1, 0.5, PULLS[0], shares[client])
        assert_close(found.rows[position], expected, rtol=0, atol=1e-13)
        assert float(found.losses[position]) == pytest.approx(shares[client] * loss(MODELS[1], client), rel=1e-13)


WIDE = eighths(6, 2**16, seed=4)  # two models of this width take a mebibyte


def test_a_fit_that_is_not_held_is_read_once_and_has_the_same_models(kind: str):
    start = torch.zeros(1, WIDE.shape[1]).double()
    work = work_of(kind, centers=WIDE, chunk=2)
    found, clients = work.fit(start, MIXED[:5]), MIXED[:5].tolist()
    assert not found.held
    assert costs_of(work) == (STEPS * 3, STEPS * (5 + 2 + 4), 0)
    reader = found.chunks()
    chunks = [next(reader)]
    for name, reason in {"losses": "read the chunks", "skipped": "read the chunks", "rows": r"chunks\(\)"}.items():
        with pytest.raises(RuntimeError, match=reason):
            getattr(found, name)
    chunks += reader
    assert [(chunk.start, len(chunk.models)) for chunk in chunks] == [(0, 2), (2, 2), (4, 1)]
    assert_close(chunks[0].models[0], train(start[0], WIDE[2], STEPS), rtol=0, atol=1e-13)
    assert torch.equal(chunks[0].models[1], start[0])
    expected = [train(start[0], WIDE[client], STEPS) for client in clients if SIZES[client]]
    with pytest.raises(RuntimeError, match="is not held in memory and was read already"):
        list(found.chunks())
    assert found.trained.tolist() == [True, False, True, False, True]
    collected = work.fit(start, MIXED[:5]).collect()
    assert_close(collected, torch.stack(expected), rtol=0, atol=1e-13)
    held = work.fit(start, MIXED[:2])
    assert held.held
    assert [[chunk.start for chunk in held.chunks()] for _ in range(2)] == [[0]] * 2
    assert len(held.losses) == 2  # no client is counted twice


def test_gradients_have_the_requested_order_and_are_counted(kind: str):
    work = work_of(kind)
    expected = (MODELS[1] - CENTERS[MIXED]) * (SIZES[MIXED] > 0)[:, None]
    assert_close(work.gradients(MODELS[1], MIXED), expected, rtol=0, atol=1e-13)
    assert costs_of(work) == (4, 5 + 2 + 4 + 3, 0)
    assert_close(work.gradients(MODELS[1], MIXED, lambda rows: rows[:, 1:3]), expected[:, 1:3], rtol=0, atol=1e-13)
    assert costs_of(work) == (8, 2 * 14, 0)


def test_a_fit_is_averaged_over_the_clients_that_trained_held_or_not(kind: str):
    start, labels = torch.zeros(1, WIDE.shape[1]).double(), ids(0, 0, 1, 1, 0)
    models = {client: train(start[0], WIDE[client], STEPS) for client in (2, 4, 5)}
    expected = torch.stack([(5 * models[2] + 4 * models[5]) / 9, models[4]])
    distance = sum((models[k] - expected[label]).norm() for k, label in ((2, 0), (4, 1), (5, 0))) / 3
    for chunk in (2, None):
        fit = work_of(kind, centers=WIDE, chunk=chunk).fit(start, MIXED[:5])
        weights = SIZES[MIXED[:5]].double().clamp(min=1)  # of a client that does not train, too
        assert_close(mean_by_cluster(fit, labels, weights), expected, rtol=0, atol=1e-13)
        assert chunk or discrepancy(fit, expected, labels) == pytest.approx(float(distance), rel=1e-12)


@pytest.mark.parametrize("at_once", [2**20, 1])
def test_losses_of_models_have_the_requested_order_and_are_counted(kind: str, at_once: int, monkeypatch):
    monkeypatch.setattr(round_work, "EVALUATION_BATCH", 4)  # parts of four examples, which clients share
    monkeypatch.setattr(round_work, "_LOSSES_AT_ONCE", at_once)
    work = work_of(kind)
    nothing = torch.where(SIZES[MIXED] > 0, 0.0, torch.nan)[:, None]
    expected = torch.tensor([[loss(model, k) for model in MODELS] for k in MIXED.tolist()]).double() + nothing
    assert_close(work.losses(MODELS, MIXED), expected, rtol=1e-13, atol=0, equal_nan=True)
    assert costs_of(work) == (0, 0, 14 * 3)
    of_examples = work.example_losses(MODELS[1:], MIXED)
    repeated = expected.nan_to_num().repeat_interleave(SIZES[MIXED], 0).T[1:]
    assert_close(of_examples, repeated, rtol=1e-13, atol=0)
    assert costs_of(work) == (0, 0, 14 * (3 + 2))


def test_answers_of_two_requests_come_in_order_and_their_bytes_add_up(kind: str):
    work = work_of(kind)
    first = work.map(lambda inputs, labels: {"mean": inputs.mean(0), "labels": labels}, MIXED)
    assert [answer is None for answer in first] == [False, True, False, True, False, False]
    for answer, client in zip(first, MIXED.tolist(), strict=True):
        if answer is not None:
            assert_close(answer["mean"], CENTERS[client], rtol=0, atol=1e-13)
            assert answer["labels"].tolist() == [0] * int(COUNTS[client, 0]) + [1] * int(COUNTS[client, 1])
    of_first = 4 * 4 * 8 + 14 * 8  # four means of four float64, fourteen labels
    assert work.bytes_up == of_first
    second = work.map(lambda inputs, labels, module: (module(inputs), labels[:1].int()), ids(4, 3, 1), MODELS[2])
    assert_close(second[0][0], (CENTERS[4] - MODELS[2]).expand(2, -1), rtol=0, atol=1e-13)
    assert second[1] is None
    assert_close(second[2][0], (CENTERS[1] - MODELS[2]).expand(3, -1), rtol=0, atol=1e-13)
    assert not second[0][0].requires_grad
    assert work.bytes_up == of_first + 5 * 4 * 8 + 2 * 4
    assert costs_of(work) == (0, 0, 14 + 5)


def test_nobody_may_be_asked(kind: str):
    work, nobody = work_of(kind), ids()
    found = work.fit(MODELS, nobody)
    assert (len(found.losses), len(found.trained), found.skipped, isnan(found.loss)) == (0, 0, 0, True)
    assert work.gradients(MODELS[0], nobody).shape == (0, 4)
    assert work.losses(MODELS, nobody).shape == (0, 3)
    assert work.example_losses(MODELS, nobody).shape == (3, 0)
    assert work.map(lambda inputs, labels: labels, nobody) == []
    assert (costs_of(work), work.bytes_up) == ((0, 0, 0), 0)


def test_clients_without_data_answer_alone(kind: str):
    work = work_of(kind)
    found = work.fit(MODELS, ids(3, 0), ids(2, 1))
    assert torch.equal(found.rows, MODELS[[2, 1]])
    assert found.trained.tolist() == [False, False]
    assert found.losses.isnan().all()
    assert isnan(found.loss)
    assert work.gradients(MODELS[1], ids(3, 0)).tolist() == [[0.0] * 4] * 2
    assert work.losses(MODELS, ids(3, 0)).isnan().all()
    assert work.map(lambda inputs, labels: labels, ids(3, 0)) == [None, None]
    assert (costs_of(work), work.bytes_up) == ((0, 0, 0), 0)


@pytest.mark.parametrize(
    ("error", "wrong"),
    [
        (TypeError, lambda work: work.fit(MODELS, ids(1), prox=0.1).rows),
        (ValueError, lambda work: work.fit(MODELS, ids(1, 2), ids(0))),
        (ValueError, lambda work: work.fit(MODELS, ids(1, 2), ids(0, -1))),
        (RuntimeError, lambda work: work.fit(MODELS, ids()).rows),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(kind: str, error: type[Exception], wrong: Callable):
    with pytest.raises(error):
        wrong(work_of(kind))


class Asking(FedAvg):
    """Algorithm that asks its cohort for statistics twice, for gradients and for losses, before it trains."""

    def round(self, state: Any, cohort: Tensor, work: LocalWork, rng: torch.Generator) -> Any:
        work.map(lambda inputs, labels: labels[0], cohort)
        work.map(lambda inputs, labels: inputs[0], cohort)
        work.gradients(work.initial(0), cohort)
        work.losses(MODELS, cohort)
        return super().round(state, cohort, work, rng)


def test_a_run_adds_up_what_each_round_cost(kind: str):
    data, cohorts = data_of(), Cohorts(3, "round_robin_first")
    done = list(rounds(Asking(), make_clients(kind), data, cohorts, seed=0, num_rounds=2))
    sizes = (3, 5), (2, 4)  # of clients with data in the cohorts 0 to 2 and 3 to 5
    assert [(one.traffic.down, one.traffic.up) for one in done] == [(3, 2), (6, 4)]
    answers = 8 + 4 * 8  # a label and an input
    assert [one.info.bytes_up for one in done] == [2 * answers] * 2
    assert done[-1].traffic.bytes_up == 4 * answers
    total = sum(map(sum, sizes))
    expected = LocalCosts(steps=4 * (1 + STEPS), examples=total * (1 + STEPS), scored=total * (1 + 1 + len(MODELS)))
    assert done[-1].costs == expected
    model = Asking().serve(done[0].state, EVERYONE).models[0]
    start = make_clients(kind).at(0, data).initial(0)
    mean = (3 * train(start, CENTERS[1], STEPS) + 5 * train(start, CENTERS[2], STEPS)) / 8
    assert_close(model, mean, rtol=0, atol=1e-13)
