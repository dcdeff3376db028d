"""Tests errors about `--algorithms` and its options, before anything runs."""

from pathlib import Path

import pytest
import yaml
from small_comparison import SMALL
from test_compare import OWN

from lit_cfl import load_experiment
from lit_cfl.cli.main import main
from lit_cfl.compare.arguments import ComparedAlgorithm, read_arguments, read_entries, with_options
from lit_cfl.compare.comparison import plan_comparison, training_differences
from lit_cfl.config.parser import parse_run
from lit_cfl.errors import InputError


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_an_entry_is_a_class_a_configuration_or_a_file():
    Path("mine.yaml").write_text("class_path: IFCA\ninit_args: {num_clusters: 7}\n")
    Path("x=1.yaml").write_text("name: whole\nalgorithm: FedProx\n")
    own = {"class_path": "FedGroup", "init_args": {"num_clusters": 4}}
    found = read_entries(["FedAvg", "FedGroup", "ifca/digits", "seven=mine.yaml", "x=1.yaml", "me=a.B"], own)
    assert [(entry.name, entry.section["class_path"]) for entry in found] == [
        ("FedAvg", "FedAvg"),
        ("FedGroup", "FedGroup"),
        ("IFCA", "IFCA"),
        ("seven", "IFCA"),
        ("FedProx", "FedProx"),
        ("me", "a.B"),
    ]
    clusters = [entry.section.get("init_args", {}).get("num_clusters") for entry in found]
    assert clusters == [None, 4, 8, 7, None, None]


def test_a_list_of_algorithms_may_have_commas_and_brackets():
    Path("a,b.yaml").write_text("algorithm: FedAvg\n")
    given = {
        ("FedAvg,IFCA", "x=Local"): ["FedAvg", "IFCA", "x=Local"],
        ("[FedAvg,", "IFCA]"): ["FedAvg", "IFCA"],
        ("[FedAvg,IFCA]",): ["FedAvg", "IFCA"],
        ("a,b.yaml", "x=a,b.yaml"): ["a,b.yaml", "x=a,b.yaml"],
    }
    for words, expected in given.items():
        assert read_arguments(["--config", "quickstart", "--algorithms", *words]).algorithms == expected


def test_an_entry_from_a_file_has_its_server_and_personal_layers():
    server = "{class_path: torch.optim.SGD, init_args: {lr: 1.0, momentum: 0.9}}"
    Path("mine.yaml").write_text(f"algorithm: FedAvg\npersonal: bn*\nshared: null\nserver: {server}\nrounds: 9\n")
    words = ["--algorithms", "FedAvg", "FedBN=mine.yaml", "--FedBN.personal", "*fc1*"]
    comparison, _ = plan_comparison(read_arguments([*SMALL[1:], "--task.net=MLP", *words]))
    plain, own = (comparison.experiments[name].to_dict() for name in ("FedAvg", "FedBN"))
    assert (plain["server"], plain["personal"]) == (None, None)
    assert own["server"]["init_args"]["momentum"] == 0.9
    assert own["personal"] == ["*fc1*"]
    assert plain["rounds"] == own["rounds"] == 3


def test_an_algorithm_may_have_a_learning_rate_and_local_work_of_its_own():
    words = ["--algorithms", "FedAvg", "IFCA", "--IFCA.task.optimizer.lr", "0.03", "--IFCA.local.epochs=2"]
    comparison, _ = plan_comparison(read_arguments([*SMALL[1:], *words, "--local.epochs", "3"]))
    found = {name: one.to_dict() for name, one in comparison.experiments.items()}
    rates = {name: one["task"]["init_args"]["optimizer"]["init_args"]["lr"] for name, one in found.items()}
    assert rates == {"FedAvg": 0.1, "IFCA": 0.03}
    assert {name: one["local"]["epochs"] for name, one in found.items()} == {"FedAvg": 3, "IFCA": 2}
    assert training_differences(*comparison.experiments.values()) == [
        "task.optimizer.lr 0.03 (0.1)",
        "local.epochs 2 (3)",
    ]
    with pytest.raises(InputError, match=r"IFCA, seed 0: task\.optimizer cannot be made: Invalid learning rate: -1"):
        plan_comparison(read_arguments([*SMALL[1:], *words[:-1], "--IFCA.task.optimizer.lr=-1.0"]))


def test_options_go_to_the_algorithm_that_they_name():
    entries = [ComparedAlgorithm(name, {"class_path": "IFCA"}) for name in ("A", "A.B", "C")]
    words = ["--rounds", "3", "--A.x", "-1", "--C.y=2", "--A.B.z", "[1, 2]", "--tiny"]
    found, rest = with_options(entries, words)
    assert [entry.words for entry in found] == [
        ("--algorithm.x", "-1"),
        ("--algorithm.z", "[1, 2]"),
        ("--algorithm.y=2",),
    ]
    assert rest == ["--rounds", "3", "--tiny"]


def test_an_option_of_one_algorithm_may_be_a_class_a_group_or_a_path_with_init_args():
    entries = [ComparedAlgorithm("A", {"class_path": "IFCA"})]
    words = ["--A.task.optimizer", "torch.optim.Adam", "--A.local", "{epochs: 2}", "--A.init_args.num_clusters=3"]
    words += ["--A.task.init_args.optimizer.init_args.lr", "0.2", "--A.help", "--A.localised", "1"]
    (found,), rest = with_options(entries, words)
    assert found.words == (
        *("--task.optimizer", "torch.optim.Adam", "--local", "{epochs: 2}", "--algorithm.num_clusters=3"),
        *("--task.optimizer.lr", "0.2", "--algorithm.help=IFCA", "--algorithm.localised", "1"),
    )
    assert rest == []
    assert found.given("num_clusters")


def test_the_number_of_clusters_that_an_algorithm_is_given_replaces_the_file_s():
    words = ["--algorithms", "FedAvg", "IFCA", "--IFCA.init_args.num_clusters", "3"]
    comparison, notices = plan_comparison(read_arguments([*SMALL[1:], *words]))
    assert comparison.experiments["IFCA"].algorithm.num_clusters == 3
    assert notices == []


@pytest.mark.parametrize("number", ["2.5", "four"])
def test_a_wrong_number_of_clusters_in_the_file_is_refused(number: str):
    content = load_experiment("quickstart").to_dict()
    content["algorithm"]["init_args"]["num_clusters"] = yaml.safe_load(number)
    Path("mine.yaml").write_text(yaml.safe_dump(content))
    with pytest.raises(InputError, match=rf"IFCA\.num_clusters is '{number}'; give auto or a whole number"):
        plan_comparison(read_arguments(["--config", "mine.yaml", "--algorithms", "FedAvg", "IFCA"]))


def test_a_file_whose_algorithm_has_an_empty_list_of_options_can_be_compared():
    content = load_experiment("quickstart", SMALL[3:-2]).to_dict() | {"algorithm": "FedGroup:"}
    text = yaml.safe_dump(content).replace("algorithm: 'FedGroup:'", "algorithm:\n  class_path: FedGroup\n  init_args:")
    Path("mine.yaml").write_text(text)
    given = ["--config", "mine.yaml", "--algorithms", "FedAvg", "IFCA"]
    comparison, _ = plan_comparison(read_arguments([*given, "--IFCA.num_clusters", "2"]))
    assert comparison.experiments["IFCA"].algorithm.num_clusters == 2
    with pytest.raises(InputError, match=r"no number of clusters is given; give it: --IFCA\.num_clusters 4"):
        plan_comparison(read_arguments(given))
    with pytest.raises(InputError, match=r"^FedGroup: init_args is null; write options below it"):
        plan_comparison(read_arguments([*given[:-1], "FedGroup"]))


def test_a_value_after_an_equals_sign_may_have_a_dot():
    words = ["--algorithms", "FedAvg", "Local", "--dropout=0.5", "--name=a.b"]
    comparison, _ = plan_comparison(read_arguments([*SMALL[1:], *words]))
    assert comparison.name == "a.b"
    assert {one.dropout for one in comparison.experiments.values()} == {0.5}


def test_the_seeds_of_a_comparison_replace_the_one_of_the_file():
    content = load_experiment("quickstart", SMALL[3:-2]).to_dict()
    del content["seeds"]
    Path("mine.yaml").write_text(yaml.safe_dump(content | {"seed": 3}))
    given = ["--config", "mine.yaml", "--algorithms", "FedAvg", "Local"]
    assert plan_comparison(read_arguments(given))[0].seeds == [3]
    assert plan_comparison(read_arguments([*given, "--seeds", "0", "1"]))[0].seeds == [0, 1]


def test_a_misplaced_option_in_the_file_of_an_entry_is_named():
    Path("mine.yaml").write_text("algorithm: FedAvg\nserver: {class_path: torch.optim.SGD, lr: 1.0}\n")
    with pytest.raises(InputError, match=r"^FedAvg: server: 'lr' is next to class_path; write options under"):
        plan_comparison(read_arguments([*SMALL[1:], "--algorithms", "mine.yaml"]))


def test_an_algorithm_with_another_optimizer_has_a_plan_that_can_train_it():
    words = ["--algorithms", "FedAvg", "Local", "slow=FedAvg", "--slow.task.optimizer", "torch.optim.Adagrad"]
    comparison, _ = plan_comparison(read_arguments([*SMALL[1:], *words]))
    engines = {name: one.plan.engine for name, one in comparison.experiments.items()}
    assert engines == {"FedAvg": "chain", "Local": "chain", "slow": "trainer"}
    other_first = ["--algorithms", "slow=FedAvg", "Local", *words[-2:]]
    comparison, _ = plan_comparison(read_arguments([*SMALL[1:], *other_first]))
    assert {name: one.plan.engine for name, one in comparison.experiments.items()} == {
        "slow": "trainer",
        "Local": "chain",
    }


def test_a_tiny_comparison_has_as_many_clients_as_each_algorithm_has_clusters():
    words = ["--algorithms", "FedAvg", "IFCA", "--IFCA.num_clusters", "7", "--tiny", "--num_cpus", "1"]
    comparison, _ = plan_comparison(read_arguments(["--config", "quickstart", *words]))
    clients = {name: one.data.federated(0).num_clients for name, one in comparison.experiments.items()}
    assert clients == {"FedAvg": 4, "IFCA": 7}


def test_another_class_is_noted_by_its_name_alone():
    schedule = ["--IFCA.local.lr_schedule", "CosineAnnealingLR", "--IFCA.local.lr_schedule.T_max", "3"]
    words = ["--algorithms", "FedAvg", "IFCA", "--IFCA.task.optimizer", "torch.optim.Adam", *schedule]
    comparison, _ = plan_comparison(read_arguments([*SMALL[1:], *words]))
    first, other = comparison.experiments.values()
    assert training_differences(first, other) == [
        "task.optimizer torch.optim.Adam (torch.optim.SGD)",
        "local.lr_schedule torch.optim.lr_scheduler.CosineAnnealingLR (null)",
    ]
    assert training_differences(other, first)[1] == (
        "local.lr_schedule null (torch.optim.lr_scheduler.CosineAnnealingLR)"
    )


def test_a_later_file_s_other_class_keeps_the_options_that_both_classes_have_as_in_a_run():
    Path("data.yaml").write_text("data: {class_path: Synthetic}\nalgorithm: IFCA\n")
    files = ["--config", "quickstart", "--config", "data.yaml", "--data.num_clients=12", "--cohort_size=4"]
    comparison, notices = plan_comparison(read_arguments([*files, "--algorithms", "FedAvg", "FedGroup"]))
    alone = parse_run(files).experiment.to_dict()
    assert comparison.first.to_dict()["data"] == alone["data"]
    assert (alone["data"]["init_args"]["test"], alone["data"]["init_args"]["validation"]) == (0.2, 0.1)
    assert notices == ["FedGroup runs with num_clusters 4, like the file's algorithm"]


def test_server_shared_and_personal_layers_may_belong_to_one_entry():
    entries = [ComparedAlgorithm("A", {"class_path": "FedAvg"}), ComparedAlgorithm("Ditto", {"class_path": "Ditto"})]
    words = [
        "--A.personal",
        "bn*",
        "--A.server=SGD",
        "--A.server.lr",
        "1",
        "--Ditto.personal.length",
        "2",
        "--A.shared",
        "x",
    ]
    mine, ditto = with_options(entries, words)[0]
    assert mine.words == ("--personal", "bn*", "--server=SGD", "--server.lr", "1", "--shared", "x")
    assert ditto.words == ("--algorithm.personal.length", "2")  # an option of Ditto itself


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("--algorithms FedAvg", "give a file: --config quickstart"),
        ("--config quickstart", "give --algorithms"),
        ("--config quickstrat --algorithms FedAvg", "(did you mean quickstart?)"),
        ("--config quickstart --algorithms FedAvg FedAvgg", "(did you mean FedAvg?)"),
        ("--config quickstart --algorithms FedAvg ifca/digitz", "(did you mean ifca/digits?)"),
        ("--config quickstart --algorithms FedAvg tune/quickstart", "names no algorithm"),
        ("--config quickstart --algorithms FedAvg ifca", "ifca: 'ifca' is not known (did you mean IFCA?)"),
        ("--config quickstart --algorithms IFCA IFCA", "IFCA twice; give each a separate name: A=IFCA B=IFCA"),
        ("--config quickstart --algorithms A=IFCA A=FedAvg", "A twice; give each a separate name: A=IFCA B=FedAvg"),
        ("--config quickstart --algorithms FedAvg fedavg/digits", "name: A=FedAvg B=fedavg/digits"),
        (
            "--config quickstart --algorithms FedAvg IFCA --IFCA.rounds 3",
            "--IFCA.rounds: rounds is the same for all compared algorithms; give --rounds, without IFCA",
        ),
        ("--config quickstart --algorithms IFCA --IFCA.task.net=MLP", "give --task.net, without IFCA"),
        ("--config quickstart --algorithms x=", "x: '' is not known. Known: "),
        ("--config quickstart --algorithms FedAvg IFCA --num_clusters 3", "give --IFCA.num_clusters for IFCA"),
        ("--config quickstart --algorithms a/b=IFCA", "'a/b' cannot be an algorithm's name"),
        (r"--config quickstart --algorithms a\b=IFCA", "cannot be an algorithm's name"),
        ("--config quickstart --algorithms data=IFCA", "'data' is an option of experiments"),
        ("--config fedavg/digits --algorithms FedAvg IFCA", "give it: --IFCA.num_clusters 4"),
        ("--config quickstart --algorithms own_failing.Needs", "needs strength; give --Needs.strength VALUE"),
        ("--config quickstart --algorithms IFCA --IFAC.num_clusters 4", "'IFAC' (did you mean IFCA?)"),
        ("--config quickstart --algorithms IFCA --IFCA.num_cluster 4", "(did you mean num_clusters?)"),
        (
            "--config quickstart --algorithms IFCA --IFCA.num_clusters x",
            "IFCA.num_clusters is 'x'; give auto or a whole number",
        ),
        ("--config quickstart --algorithms FedAvg IFCA --IFCA.num_clusters 41", "IFCA, seed 0: num_clusters is 41"),
        ("--config quickstart --algorithms IFCA --IFCA.lr 1", "'lr' (did you mean --IFCA.task.optimizer.lr?)"),
        ("--config quickstart --algorithms IFCA --seeds 0 0", "seeds is [0, 0]"),
        ("--config quickstart --algorithms IFCA --seeds 0 x", "'x' is not a seed"),
        ("--config quickstart --algorithms IFCA --seed 3", "give --seeds"),
        ("--config quickstart --algorithms IFCA --num_seeds 3", "give --seeds, such as --seeds 0 1 2"),
        ("--config quickstart --algorithms IFCA --algorithm.num_clusters 3", "options by its name"),
        (
            "--config quickstart --algorithms IFCA --device cuda:1",
            "sees one GPU, which is cuda:0 there: give cuda, and",
        ),
        ("--config quickstart --algorithms IFCA --round 3", "(did you mean --rounds?)"),
        ("--config quickstart --algorithms IFCA --cohort_size 41", "cohort_size is 41, but there are 40 clients"),
        ("--config quickstart --algorithms IFCA --target 80", "--target is 80"),
        ("--config quickstart --algorithms IFCA --num_cpus 4096", "are available; give"),
        (
            "--config quickstart --algorithms IFCA --compare_dir run",
            "already holds a run; choose another --compare_dir",
        ),
        ("--config quickstart --algorithms FedAvg --target 0,5", "--target: '0,5' is not a number; write 0.5"),
        ("--config quickstart --algorithms FedAvg --num_cpus two", "--num_cpus: 'two' is not a whole number"),
        ("--resume nowhere", "holds no comparison to resume"),
        ("--resume nowhere --rounds 3", "leave out --rounds"),
        ("--resume nowhere elsewhere", "leave out elsewhere"),
    ],
)
def test_mistakes_are_named_before_anything_runs(capsys: pytest.CaptureFixture[str], arguments: str, expected: str):
    Path("own_failing.py").write_text(OWN)
    Path("run").mkdir()
    Path("run/config.yaml").write_text("")
    assert main(["compare", *arguments.split()]) == 2
    captured = capsys.readouterr()
    assert expected in captured.err
    assert captured.err.count("\n") == 1
    assert not list(Path().rglob("compare.yaml"))
    assert not list(Path().rglob("metrics.csv"))


def test_an_unreadable_entry_is_quoted():
    Path("bad.yaml").write_text("a: [1")
    with pytest.raises(InputError, match=r"bad\.yaml is not a YAML file"):
        read_entries(["bad.yaml"], None)


def test_later_files_replace_options_of_earlier_ones_as_in_a_run():
    first = {
        "rounds": 3,
        "data": {"class_path": "Digits", "init_args": {"num_clients": 12}},
        "task": {
            "class_path": "Classification",
            "init_args": {
                "net": {"class_path": "MLP", "init_args": {"hidden": 64}},
                "optimizer": {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.1}},
            },
        },
        "local": {"epochs": 3, "batch_size": 10},
    }
    second = {
        "data": {"init_args": {"validation": 0.2}},
        "task": {"init_args": {"net": {"class_path": "MCLR"}}},
        "local": {"epochs": 1},
        "evaluation": {"clients": "all"},
    }
    for number, content in enumerate([first, second]):
        Path(f"{number}.yaml").write_text(yaml.safe_dump(content))
    files = ["--config", "0.yaml", "--config", "1.yaml"]
    comparison, _ = plan_comparison(read_arguments([*files, "--algorithms", "FedAvg"]))
    compared = comparison.first.to_dict()
    alone = parse_run([*files, "--algorithm", "FedAvg"]).experiment.to_dict()
    same = ("data", "task", "local", "evaluation", "rounds")
    assert [compared[option] for option in same] == [alone[option] for option in same]
    assert compared["data"]["init_args"]["num_clients"] == 12
    assert compared["data"]["init_args"]["validation"] == 0.2
    assert main(["compare", *files, "--algorithms", "FedAvg", "Local", "--seeds", "0", "--dry-run"]) == 0
