"""Checks a command line before PyTorch is loaded: folders, options, class names and stray words.

Each check refuses only what the command itself would refuse: anything that the source files do not show is accepted.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lit_cfl.cli.help_cache import is_help
from lit_cfl.config.files import read_config, with_recorded_config
from lit_cfl.config.given_options import FLAGS, given_options, option_names
from lit_cfl.config.named_configs import config_files, config_path, with_paths
from lit_cfl.config.option_tree import (
    OF_DATA,
    OF_RUN,
    OptionTree,
    UnknownOption,
    describe,
    experiment_tree,
    require_known_class,
    require_known_classes,
    require_known_options,
    study_tree,
)
from lit_cfl.config.typed_words import describe_lone_word, lone_words, with_lists
from lit_cfl.errors import InputError
from lit_cfl.storage.config_file import require_config


def check_run(words: Sequence[str]) -> None:
    """Checks the arguments of `lit-cfl run`. Raises InputError."""
    if not _asks_for_help(words):
        arguments, _ = with_recorded_config(words)
        contents = [read_config(file) for file in config_files(with_paths(arguments))]
        _check_experiment(words, contents, "lit-cfl run", OF_RUN)
    else:
        _check_help(words)


def check_data(words: Sequence[str]) -> None:
    """Checks the arguments of `lit-cfl data`. Raises InputError."""
    if not _asks_for_help(words):
        _check_experiment(words, _contents(words), "lit-cfl data", (*OF_RUN, *OF_DATA))
    else:
        _check_help(words)


def check_tune(words: Sequence[str]) -> None:
    """Checks the arguments of `lit-cfl tune`, and the experiment options under `base` in the study's file."""
    from lit_cfl.tune.record import find_resumed_directory, require_study_file

    if _asks_for_help(words):
        return
    opened = find_resumed_directory(words)
    if opened is not None:
        require_study_file(opened)
    contents, tree = _contents(words), study_tree()
    for content in contents:
        base = content.get("base")
        if isinstance(base, dict):
            own = experiment_tree([base], [])
            require_known_options(own, list(option_names(base)), "lit-cfl run", "base: ")
            require_known_classes(own)
        if "task" not in content:  # an experiment's file gets another message
            _require_options_of_a_study(tree, list(content))
    _require_options_of_a_study(tree, [option for option, _ in given_options(words)])
    _require_no_lone_word(words, tree)


def check_compare(words: Sequence[str]) -> None:
    """Checks the arguments of `lit-cfl compare`. Raises InputError."""
    from lit_cfl.compare.arguments import (
        compared_algorithms,
        name_own_training,
        read_arguments,
        require_comparison,
    )

    if _asks_for_help(words):
        return
    given = read_arguments(words)
    if given.resume is not None:
        require_comparison(given.resume)
        return
    content = read_config(config_path(given.config)) if isinstance(given.config, str) else dict(given.config)
    entries, rest = compared_algorithms(given, content.get("algorithm"))
    plain = experiment_tree([content | {"algorithm": "FedAvg", "baseline": None}], rest)
    trees = {}
    for entry in entries:
        tree = experiment_tree([content | {"algorithm": dict(entry.section), "baseline": None}], [*rest, *entry.words])
        require_known_classes(tree, {"algorithm": entry.name})
        trees[entry.name] = tree
        for option, _ in given_options(entry.words):
            found = tree.look_up(option)
            if isinstance(found, UnknownOption):
                said = describe(tree, found, "lit-cfl compare")
                raise InputError(f"{entry.name}: {name_own_training(entry.name, said)}")
    for option, _ in given_options(rest):
        found = plain.look_up(option)
        if isinstance(found, UnknownOption):
            raise InputError(_not_of_a_comparison(found, trees))


def check_report(words: Sequence[str]) -> None:
    """Checks the arguments of `lit-cfl report`. Raises InputError."""
    from lit_cfl.report.options import read_arguments

    if not _asks_for_help(words):
        read_arguments(words)


def check_saved_run(words: Sequence[str]) -> None:
    """Raises InputError if the first argument of `lit-cfl evaluate` or `lit-cfl assign` is not a run."""
    if words and not words[0].startswith("-"):
        require_config(Path(words[0]))


def _check_experiment(words: Sequence[str], contents: Sequence[Any], command: str, own: Sequence[str]) -> None:
    """Checks options, class names and stray words, in each file and on the command line."""
    for number, content in enumerate(contents):
        if "space" not in content:  # a study's file gets another message
            by_file = experiment_tree(contents[: number + 1], [], own)
            require_known_options(by_file, list(option_names(content)), command)
    tree = experiment_tree(contents, words, own)
    require_known_options(tree, [option for option, _ in given_options(words)], command)
    require_known_classes(tree)
    _require_no_lone_word(words, tree)


def _check_help(words: Sequence[str]) -> None:
    """Raises InputError if help is requested for an unknown class, or for an option of a class that is not selected."""
    asked = [
        (option.removesuffix(".help"), value) for option, value in given_options(words) if option.endswith(".help")
    ]
    tree = experiment_tree(_contents(words), [word for word in words if ".help" not in word])
    for path, name in asked:
        owner, _, key = path.rpartition(".")
        if owner and owner not in tree.chosen:
            raise InputError(
                f"no class is given for {owner}; name one before asking for help: --{owner} NAME --{path}.help {name}"
            )
        if name:
            require_known_class(tree, path, key, name)


def _require_no_lone_word(words: Sequence[str], tree: OptionTree) -> None:
    for word in lone_words(with_lists(words, tree.look_up), FLAGS):
        raise InputError(describe_lone_word(word))


def _require_options_of_a_study(tree: OptionTree, options: Sequence[str]) -> None:
    experiments = experiment_tree([], [])
    for option in options:
        found = tree.look_up(option)
        if not isinstance(found, UnknownOption):
            continue
        if option in FLAGS:
            raise InputError(f"--{option} is an option of lit-cfl run, which lit-cfl tune does not have; leave it out")
        if not found.owner and not isinstance(experiments.look_up(option), UnknownOption):
            searched = "" if option in ("rounds", "seeds", "name") else ", or search it in the study's space"
            raise InputError(
                f"{option!r} is an option of an experiment, not of a study; set it in the study's base{searched}"
            )
        raise InputError(describe(tree, found, "lit-cfl tune"))


def _not_of_a_comparison(unknown: UnknownOption, trees: Mapping[str, OptionTree]) -> str:
    """Describes an unknown option of `lit-cfl compare`, and suggests a similar option if there is one."""
    name = next((name for name, tree in trees.items() if tree.guess_option(unknown.option)), list(trees)[-1])
    rule = f"Options of an algorithm begin with its name (--{name}.OPTION); see lit-cfl run --help for all others"
    message = describe(trees[name], unknown, "lit-cfl run").replace("--algorithm.", f"--{name}.")
    return message.replace("See lit-cfl run --help", rule)


def _contents(words: Sequence[str]) -> list[dict[str, Any]]:
    return [read_config(config_path(name)) for name in config_files(words)]


def _asks_for_help(words: Sequence[str]) -> bool:
    return is_help(words) or any(word.partition("=")[0] == "--print_config" for word in words)
