"""Reading Compose files: what Compose resolves, its words and line for what it refuses; tasks, and who waits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from seatrial.backends.base import ImageFacts
from seatrial.compose.read import ComposeFile, find_files, profiles_in, up_command, with_profiles
from seatrial.errors import SeatrialError, UsageError
from seatrial.system.host import Host
from tables import cases, constant

BAD = constant(__file__, "BAD")


@pytest.mark.parametrize("name", BAD)
def test_refusal_is_composes_own_words_behind_file_and_line(read, name: str) -> None:
    text, line, words = BAD[name]
    with pytest.raises(UsageError) as caught:
        read(text)
    assert words in caught.value.message and "Compose: " in caught.value.message
    assert f"compose.yaml:{line}: " in caught.value.message or (line == 1 and "compose.yaml: " in caught.value.message)
    assert caught.value.run and "\n" not in caught.value.message


def test_a_required_variable_that_is_not_set_is_to_be_exported_and_another_mistake_is_shown(read) -> None:
    with pytest.raises(UsageError) as caught:
        read("services:\n  a:\n    image: x\n    command: echo ${DATA:?the folder}\n")
    assert caught.value.run == "export DATA=…"
    with pytest.raises(UsageError) as caught:
        read("services:\n  a:\n    image: x\n    depends_on: [b]\n")
    assert caught.value.run and caught.value.run.startswith("sed -n 2p ")


def test_a_service_that_is_not_there_gets_the_nearest(read) -> None:
    text = "services:\n  train: {image: x}\n  serve: {image: x}\n"
    with pytest.raises(UsageError) as caught:
        read(text, "trian")
    assert caught.value.message.endswith("compose.yaml has no service trian; did you mean train?")
    assert caught.value.run and caught.value.run.startswith("seatrial up") and caught.value.run.endswith(" train")


def test_advice_names_the_files_that_were_given(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "compose.yaml").touch()
    own, gpu = tmp_path / "compose.yaml", tmp_path / "gpu.yaml"
    assert up_command([own], Host({})) == "seatrial up"
    assert up_command([own, gpu], Host({})) == "seatrial up -f compose.yaml -f gpu.yaml"
    assert up_command([tmp_path / "sub" / "compose.yaml"], Host({})) == "seatrial up -f sub/compose.yaml"
    assert (
        up_command([own], Host({"COMPOSE_PROFILES": "a,b c"}), ["train"])
        == "seatrial up --profile a --profile 'b c' train"
    )


def test_what_another_waits_for_is_a_task(read) -> None:
    text = """
        services:
          pull: {image: x, tty: true}
          train: {image: x, depends_on: {pull: {condition: service_completed_successfully}}}
          shell: {image: x, tty: true}
        """
    services = read(text).services
    assert services["pull"].is_task and not services["shell"].is_task


def test_the_user_of_a_service(read) -> None:
    service = read("services:\n  a: {image: x, user: '1000:1000'}\n").services["a"]
    assert service.user == "1000"
    assert replace(service, config={}).user == "root"
    assert replace(service, config={}, facts=ImageFacts("", None, user="jovyan")).user == "jovyan"


def test_variables_that_are_not_set_are_named_as_the_cause(read) -> None:
    with pytest.raises(UsageError) as caught:
        read("services:\n  a:\n    image: x\n    volumes: ['${NOWHERE}:/data']\n")
    assert caught.value.cause == "not set, and so empty: NOWHERE"


def test_profiles_are_added_to_those_of_the_environment(read) -> None:
    text = "services:\n  a: {image: x, profiles: [gpu]}\n  b: {image: x, profiles: [cpu]}\n  c: {image: x}\n"
    environ = with_profiles(Host({"COMPOSE_PROFILES": "cpu"}), ["gpu", "cpu"]).env
    assert environ == {"COMPOSE_PROFILES": "cpu,gpu"} and with_profiles(Host({}), []).env == {}
    assert set(read(text, **environ).services) == {"a", "b", "c"}
    assert profiles_in(Host({})) == []
    assert read(text, "a", **environ).command.endswith("compose.yaml --profile cpu --profile gpu a")


@cases("text")
def test_nothing_to_bring_up(read, text: str) -> None:
    with pytest.raises(SeatrialError):
        read(text)


def test_deep_nesting_is_refused_before_it_is_built(read) -> None:
    with pytest.raises(UsageError, match="nested too deep"):
        read("x: " + "[" * 5000 + "]" * 5000)


def test_anchors_merges_and_dollars_are_what_compose_makes_of_them(read) -> None:
    file = read(constant(__file__, "ANCHORS")["text"], WORD="here")
    assert list(file.services) == ["one"]
    assert file.services["one"].config["command"] == ["sh", "-c", "echo $HOME here"]
    assert file.place("one", "image").line == 2 and file.place("one", "command").line == 7


def test_files_as_compose_finds_them(tmp_path: Path) -> None:
    for name in ("docker-compose.yml", "docker-compose.override.yml", "other.yaml"):
        (tmp_path / name).write_text("services: {}\n")
    assert [path.name for path in find_files(tmp_path, Host({}))] == [
        "docker-compose.yml",
        "docker-compose.override.yml",
    ]
    (tmp_path / "docker-compose.override.yaml").write_text("services: {}\n")  # Compose takes the first, with a warning
    assert [path.name for path in find_files(tmp_path, Host({}))] == [
        "docker-compose.yml",
        "docker-compose.override.yml",
    ]
    assert [path.name for path in find_files(tmp_path, Host({"COMPOSE_FILE": "other.yaml"}))] == ["other.yaml"]
    assert find_files(tmp_path / "nowhere", Host({})) == ()


HEAD = constant(__file__, "HEAD")
TAIL = "volumes: {data: , other: }\n"


def waits(file: ComposeFile) -> list[tuple[str, str]]:
    return list(file.short_waits)


def test_readers_that_wait(read) -> None:
    readers = constant(__file__, "READERS")
    texts = [f"  r{number}:\n    image: x\n    {lines}\n" for number, (lines, _) in enumerate(readers.values())]
    found = waits(read(f"{HEAD}{''.join(texts)}{TAIL}"))
    assert found == [("prep", f"r{number}") for number, (_, does) in enumerate(readers.values()) if does]


def test_nobody_waits_for_the_end_of_a_service(read) -> None:
    preps = {f"p{number}": sign for number, sign in enumerate(constant(__file__, "SIGNS"))}
    text = "".join(f"  {name}:\n    image: x\n    volumes: [data:/out]\n    {sign}\n" for name, sign in preps.items())
    reader = f"  train: {{image: x, depends_on: [{', '.join(preps)}], volumes: [data:/in]}}\n"
    file = read(f"services:\n{text}{reader}{TAIL}")
    assert waits(file) == [] and all(file.services[name].why_service for name in preps)


def test_service_is_a_task_unless_a_reason_speaks_against_it(services) -> None:
    rows = constant(__file__, "REASONS")
    _, found = services([f"{{image: x, {row['keys']}}}" for row in rows])
    assert [each.why_service for each in found] == [row.get("why") for row in rows]
    assert [each.is_task for each in found] == ["why" not in row for row in rows]


def test_folders_of_the_host_are_handed_over_too(read, tmp_path) -> None:
    text = """
services:
  prep: {image: x, volumes: ["./data:/out"]}
  train: {image: x, depends_on: [prep], volumes: ["./data/processed:/in:ro"]}
"""
    assert waits(read(text)) == [("prep", "train")]


def test_who_never_runs_next_to_whom(read) -> None:
    text = f"""{HEAD}
  train: {{image: x, depends_on: [prep], volumes: [data:/in]}}
  eval: {{image: x, depends_on: {{train: {{condition: service_completed_successfully}}}}}}
  other: {{image: x}}
{TAIL}"""
    file = read(text)
    assert file.needs["train"] == ("prep",) and file.never_together("eval", "prep")
    assert file.never_together("prep", "train") and not file.never_together("other", "prep")
