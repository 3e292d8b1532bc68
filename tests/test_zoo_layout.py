"""The zoo: every program once, in the folder of its cause, in the manifest, and without nantrap."""

from __future__ import annotations

import ast

import pytest

from nantrap.incident.codes import BY_SLUG
from torch_habits import is_possible
from zoo.loading import (
    CONTROLS,
    SCRIPTS,
    ZOO,
    collections,
    families,
    find,
    is_control,
    is_held_back,
    load,
    manifest,
    sample,
    truth_of_script,
)

FILES = sorted([*ZOO.glob("programs/*/*.py"), *ZOO.glob("controls/*.py")])
WHOLE = sorted(path.parent for path in ZOO.glob("scripts/*/train.py"))


def test_every_program_is_in_the_manifest_once() -> None:
    here = [*FILES, *WHOLE]
    assert sorted(path.relative_to(ZOO).as_posix() for path in here) == sorted(manifest()["programs"])
    assert len({path.stem for path in here}) == len(here)
    assert {entry["collection"] for entry in manifest()["programs"].values()} == set(collections())


def test_programs_held_back_come_only_by_the_name_of_their_collection() -> None:
    apart = find("held_back")
    assert apart
    assert all("measure only" in path.read_text(encoding="utf-8") for path in apart)
    assert not any(is_held_back(path) for path in find())
    assert not any(is_held_back(path) for path in find(*families(), CONTROLS))
    assert {*find(), *apart} == set(FILES)
    assert find(SCRIPTS) == WHOLE


def test_a_sample_takes_every_folder_in_its_share() -> None:
    chosen = sample(find(), 60)
    by_folder = {name: sum(path.parent.name == name for path in chosen) for name in (*families(), CONTROLS)}
    assert all(by_folder.values())
    assert 55 <= len(chosen) <= 65
    assert by_folder["forward_maths"] > by_folder["state"] > by_folder["platform"]
    assert chosen == sample(reversed(find()), 60)


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ValueError, match="no family, collection or program 'dat'"):
        find("dat")


def test_no_program_imports_nantrap_or_a_neighbour() -> None:
    names = {path.stem for path in FILES}
    for path in (*FILES, *(folder / "train.py" for folder in WHOLE)):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not {module.partition(".")[0] for module in modules} & {"nantrap", "zoo", *names}, path


@pytest.mark.filterwarnings("ignore")
def test_a_folder_is_the_family_of_the_cause() -> None:
    for path in filter(is_possible, FILES):
        truth = load(path)["truth"]
        assert is_control(truth) == (path.parent.name == CONTROLS), path
        if not is_control(truth):
            assert manifest()["families"][path.parent.name][:3] == BY_SLUG[truth["cause"]].code[:3], path


def test_a_script_says_where_it_fails_or_that_it_is_healthy() -> None:
    for folder in WHOLE:
        truth = truth_of_script(folder)
        assert is_control(truth) or truth["line"] in (folder / "train.py").read_text(encoding="utf-8"), folder
        assert is_control(truth) or {truth["cause"], *truth.get("also", ())} <= set(BY_SLUG), folder
