"""Checks the contract of algorithms on quadratic clients."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import MISSING, fields, is_dataclass, replace
from functools import partial
from io import BytesIO
from typing import Any, NoReturn

import torch
from torch import Tensor

from lit_cfl.algorithms.base import Algorithm, State
from lit_cfl.algorithms.check_answers import check_answer, check_assignment, require_savable
from lit_cfl.errors import InputError
from lit_cfl.seeds import generator
from lit_cfl.storage.checkpoint import state_from_dict, state_to_dict
from lit_cfl.testing.quadratic import QuadraticWork

_CLIENTS, _COLUMNS, _ROUNDS, _COHORT = 12, 6, 6, 5
_TOLERANCE = 1e-9  # the order of float64 sums over clients may differ


def check_algorithm(algorithm: Algorithm) -> None:
    """Checks that an algorithm keeps the contract.

    * it is a frozen dataclass whose fields all have defaults, and names its `state_type`;
    * its state is a flat dataclass of tensors, numbers, strings, lists and dicts, and survives
      `torch.load(weights_only=True)`;
    * `round`, `place` and `serve` never change their arguments;
    * the same seed gives the same run, also if the run is saved and loaded after any round;
    * the order of the clients in a cohort does not matter;
    * it reads no true clusters, unless it says so (`sees_truth`);
    * `serve` returns a model or -1 for each of the given clients, in their order; after `place`, every client with data
      has a model, also one that was never seen (an id beyond those that `init` knew, so beyond the length of a client
      map in the state), and the same one in any order and every time;
    * `place_unlabelled`, if the algorithm and its options have it, does the same without a fit, gradient or loss;
    * a round without clients, clients without data, and fits that are read in chunks all work;
    * scores are named in `score_columns`, tables in `tables`, and traffic is not negative.

    Args:
        algorithm: Instance with its default arguments.

    Raises:
        AssertionError: the broken rule, in words; if a call raised an error, that error and the call.
    """
    given: object = algorithm
    if isinstance(given, type):
        raise AssertionError(f"{given.__name__} is a class; give an object of it: check_algorithm({given.__name__}())")
    try:
        for check in (
            _is_plain,
            _keeps_arguments,
            _repeats,
            _resumes,
            _ignores_order,
            _serves,
            _places,
            _places_unlabelled,
            _accepts_empty_rounds,
            _reads_chunks,
        ):
            check(algorithm)
    except AssertionError as error:
        raise AssertionError(f"{type(algorithm).__name__}: {error}") from error.__cause__
    except InputError as error:  # of check_answer, check_assignment or require_savable, and names the algorithm
        raise AssertionError(str(error)) from error


def _work(
    algorithm: Algorithm, clients: int = _CLIENTS, kind: type[QuadraticWork] = QuadraticWork, **options: Any
) -> QuadraticWork:
    """Makes clients of unequal sizes around two opposite points, with true clusters if the algorithm reads them."""
    rng = torch.Generator().manual_seed(7)
    side = 1.0 - 2.0 * (torch.arange(clients) % 2).double()
    centers = torch.randn(clients, _COLUMNS, generator=rng, dtype=torch.float64)
    centers[:, 0] += 8 * side
    labels = torch.randint(1, 9, (clients, 4), generator=rng)
    sizes = labels.sum(1)
    settings: dict[str, Any] = {"label_counts": labels, "steps": 3} | options
    settings["true_clusters"] = torch.arange(clients) % 2 if algorithm.sees_truth else None
    return kind(centers, sizes, 0.2, **settings)


def _cohort(round: int, algorithm: Algorithm) -> Tensor:
    if algorithm.needs_all(round):
        return torch.arange(_CLIENTS)
    return torch.randperm(_CLIENTS, generator=generator(3, "cohort", round))[:_COHORT]


def _states(
    algorithm: Algorithm,
    work: QuadraticWork,
    reorder: Callable[[Tensor], Tensor] = lambda cohort: cohort.sort().values,
    between: Callable[[State], State] = lambda state: state,
) -> Iterator[State]:
    """Yields the state after `init` and after each round."""
    # a copy, since a new process would not have attributes that were set on the instance
    algorithm = replace(algorithm)
    state = _ask(algorithm, "init", "init", work.at(0), generator(3, "init"))
    yield state
    for round in range(_ROUNDS):
        algorithm = replace(algorithm)
        cohort, rng = reorder(_cohort(round, algorithm)), generator(3, "round", round)
        call = f"round {round} with the cohort {cohort.tolist()}"
        state = _ask(algorithm, "round", call, between(state), cohort, work.at(round), rng)
        with _raised_in("serve"):
            algorithm.serve(state, torch.arange(_CLIENTS))
        yield state


def _ask(algorithm: Algorithm, method: str, call: str, *arguments: Any) -> State:
    """Calls a method, whose error is a broken rule in `call`, and checks its answer; returns the state."""
    with _raised_in(call):
        answer = getattr(algorithm, method)(*arguments)
    return check_answer(algorithm, method, answer, partial(_num_models, algorithm))[0]


def _num_models(algorithm: Algorithm, state: State) -> int:
    with _raised_in("serve"):
        return len(algorithm.serve(state, torch.arange(_CLIENTS)).models)


def _is_plain(algorithm: Algorithm) -> None:
    kind = type(algorithm)
    frozen = is_dataclass(kind) and kind.__dataclass_params__.frozen  # type: ignore[attr-defined]  # dataclasses keep it, the stubs do not
    _require(frozen, "is not a frozen dataclass; write @dataclass(frozen=True)")
    bare = [f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING]
    _require(not bare, f"its fields {bare} have no default")
    named = is_dataclass(getattr(kind, "state_type", None))
    _require(named, "has no state_type, or one that is not a dataclass")
    for state in _states(algorithm, _work(algorithm)):
        require_savable(algorithm, state)


def _tensors(work: QuadraticWork) -> dict[str, Any]:
    return {name: value for name, value in vars(work).items() if isinstance(value, Tensor)}


def _keeps_arguments(algorithm: Algorithm) -> None:
    work, before = _work(algorithm), repr(algorithm)
    state, _ = algorithm.init(work, generator(3, "init"))
    everyone = torch.arange(_CLIENTS)
    calls: dict[str, Callable[[State, Tensor], object]] = {
        "round": lambda s, c: algorithm.round(s, c, work, generator(3, "round")),
        "place": lambda s, c: algorithm.place(s, c, work, generator(3, "place")),
        "serve": lambda s, c: algorithm.serve(s, c),
    }
    for name, call in calls.items():
        kept_state, kept_work, cohort = deepcopy(state_to_dict(state)), deepcopy(_tensors(work)), everyone.clone()
        with _raised_in(f"{name} with all clients"):
            call(state, cohort)
        same = _difference(kept_state, state_to_dict(state)) == 0 and torch.equal(cohort, everyone)
        _require(same, f"{name} changes its arguments")
        _require(_difference(kept_work, _tensors(work)) == 0, f"{name} changes the data of the clients")
    _require(repr(algorithm) == before, "changes its own fields")


def _repeats(algorithm: Algorithm) -> None:
    torch.manual_seed(1)
    first = list(_states(algorithm, _work(algorithm)))
    torch.manual_seed(2)  # seeds the global generator, which must not matter
    _compare(
        algorithm, _states(algorithm, _work(algorithm)), "the same seed gives a different state after {after}", first
    )


def _resumes(algorithm: Algorithm) -> None:
    saved = _states(algorithm, _work(algorithm), between=lambda state: _save_and_load(algorithm, state))
    _compare(algorithm, saved, "a run that is saved and loaded after each round differs after {after}")


def _compare(
    algorithm: Algorithm, states: Iterable[State], rule: str, others: Iterable[State] = (), tolerance: float = 0.0
) -> None:
    """Compares the states of a run with those of the plain run; `rule` names the round and the difference."""
    plain = others or _states(algorithm, _work(algorithm))
    for position, (a, b) in enumerate(zip(plain, states, strict=True)):
        found = _difference(state_to_dict(a), state_to_dict(b))
        after = "init" if position == 0 else f"round {position}"
        _require(found <= tolerance, rule.format(after=after, found=f"{found:.1e}"))


def _save_and_load(algorithm: Algorithm, state: State) -> State:
    buffer = BytesIO()
    torch.save(state_to_dict(state), buffer)
    buffer.seek(0)
    return state_from_dict(algorithm.state_type, torch.load(buffer, weights_only=True))


def _ignores_order(algorithm: Algorithm) -> None:
    reverse = _states(algorithm, _work(algorithm), reorder=lambda cohort: cohort.sort(descending=True).values)
    _compare(algorithm, reverse, "the order of the cohort matters by {found} in {after}", tolerance=_TOLERANCE)


def _serves(algorithm: Algorithm) -> None:
    for state in _states(algorithm, _work(algorithm)):
        served = algorithm.serve(state, torch.arange(_CLIENTS))
        some = torch.tensor([7, 2, 9])
        with _raised_in(f"serve for the clients {some.tolist()}"):
            alone = algorithm.serve(state, some).index
            in_order = _difference(alone, served.index[some]) == 0
        _require(
            in_order,
            f"serve gives the clients {some.tolist()} the models {alone.tolist()} if only they are asked for, and "
            f"{served.index[some].tolist()} among all: give each client its model, in their order, and number models "
            "alike in every call",
        )
        check_assignment(algorithm, served, torch.arange(_CLIENTS), _COLUMNS)
        for row in (*served.models, *served.extra.values()):
            _require(bool(row.isfinite().all()), "serve gives a model that is not finite")


def _places(algorithm: Algorithm) -> None:
    _check_place(algorithm, "place", _work(algorithm, _CLIENTS + 3))


def _places_unlabelled(algorithm: Algorithm) -> None:
    if type(algorithm).place_unlabelled is Algorithm.place_unlabelled:
        return
    work = _work(algorithm, _CLIENTS + 3, kind=_Unlabelled)
    state, _ = algorithm.init(_work(algorithm), generator(3, "init"))
    with _raised_in("place_unlabelled of no clients"):
        try:
            algorithm.place_unlabelled(state, torch.empty(0, dtype=torch.int64), work, generator(3, "place"))
        except InputError:
            return  # with these options, the algorithm cannot place clients without labels
    _check_place(algorithm, "place_unlabelled", work)


class _Unlabelled(QuadraticWork):
    """Clients that have no labels, and so cannot train."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.label_counts = self.label_counts[:, :0]

    def fit(self, *arguments: Any, **options: Any) -> NoReturn:
        raise RuntimeError("clients without labels cannot train, and have no gradients and no losses")

    gradients = losses = fit


def _check_place(algorithm: Algorithm, name: str, more: QuadraticWork) -> None:
    place = getattr(algorithm, name)
    for state in _states(algorithm, _work(algorithm)):
        with _raised_in(f"{name} of no clients"):
            place(state, torch.empty(0, dtype=torch.int64), more.at(_ROUNDS), generator(3, "place"))
        for clients in (torch.arange(_CLIENTS), torch.tensor([_CLIENTS + 2, _CLIENTS])):
            unseen = int(clients[0]) >= _CLIENTS
            who = "clients never seen" if unseen else "its clients"
            ids = f"{clients.tolist()}{f', of which init knew only 0 to {_CLIENTS - 1}' if unseen else ''}"
            call = f"{name} of {who}, the ids {ids},"
            placed = _ask(algorithm, name, call, state, clients, more.at(_ROUNDS), generator(3, "place"))
            with _raised_in(f"serve for {who}, the ids {ids},"):
                index = algorithm.serve(placed, clients).index
            _require(bool((index >= 0).all()), f"after {name}, serve gives {who} no model")
            torch.manual_seed(int(clients[0]))  # seeds the global generator, which must not matter
            again, _ = place(state, clients.flip(0), more.at(_ROUNDS), generator(3, "place"))
            alike = _difference(index, algorithm.serve(again, clients).index) == 0
            _require(alike, f"{name} gives {who} another model the second time, in another order")


def _accepts_empty_rounds(algorithm: Algorithm) -> None:
    if algorithm.needs_all(0):
        return  # the algorithm never has empty rounds
    work = _work(algorithm)
    work.num_examples = work.num_examples.clone()
    work.num_examples[[2, 7]] = 0
    state, _ = algorithm.init(work, generator(3, "init"))
    nobody, without_data = torch.empty(0, dtype=torch.int64), torch.tensor([2, 7])
    for name, cohort in {"no clients": nobody, "clients without data": without_data}.items():
        with _raised_in(f"a round of {name}"):
            after, _ = algorithm.round(state, cohort, work, generator(3, "round"))
            models = algorithm.serve(after, torch.arange(_CLIENTS)).models
        _require(bool(models.isfinite().all()), f"a round of {name} gives a model that is not finite")


def _reads_chunks(algorithm: Algorithm) -> None:
    chunked = _states(algorithm, _work(algorithm, chunk_size=2))
    _compare(algorithm, chunked, "reading a fit in chunks matters by {found} in {after}", tolerance=_TOLERANCE)


@contextmanager
def _raised_in(call: str) -> Iterator[None]:
    """Converts an error of the algorithm within the block into an AssertionError: a broken rule of the contract."""
    try:
        yield
    except Exception as error:
        raise AssertionError(f"{call} raises {type(error).__name__}: {error}") from error


def _difference(a: Any, b: Any) -> float:
    """Finds the maximum absolute difference of two states' values; infinite if their types or shapes differ."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        if a.shape != b.shape or a.dtype != b.dtype:
            return float("inf")
        apart = (a.double() - b.double()).abs()
        same = (a == b) | (a.isnan() & b.isnan())
        return float(torch.where(same, 0.0, apart.nan_to_num(torch.inf)).max()) if a.numel() else 0.0
    if isinstance(a, dict) and isinstance(b, dict):
        return (
            max((_difference(a[key], b.get(key)) for key in a), default=0.0) if a.keys() == b.keys() else float("inf")
        )
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        return max((_difference(x, y) for x, y in zip(a, b, strict=True)), default=0.0)
    if isinstance(a, float) and isinstance(b, float):
        return 0.0 if a == b or (a != a and b != b) else abs(a - b)
    return 0.0 if type(a) is type(b) and a == b else float("inf")


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise AssertionError(what)
