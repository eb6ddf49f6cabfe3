"""Images: ready ones as they are, one without Python, and those that are not there."""

from __future__ import annotations

from cli_project import CONFIG, Project
from engines import IMAGE, BuildImage


def test_the_entrypoint_of_a_ready_image_runs(build_image: BuildImage, container_project: Project) -> None:
    image = build_image(
        container_project.engine,
        f"FROM {IMAGE}\nRUN printf '#!/bin/sh\\necho entered by $*\\nexec \"$@\"\\n' > /entry && chmod +x /entry\n"
        'ENTRYPOINT ["/entry", "prefix"]\nRUN ln -s /bin/echo /usr/bin/prefix\nCMD ["as", "built"]',
    )
    own = container_project.run("--image", image)
    assert own.stdout.startswith("entered by prefix as built\nas built\n")
    given = container_project.run("--image", image, "--", "other", "words")
    assert given.stdout.startswith("entered by prefix other words\nother words\n")
    container_project.write("train.py", "import sys; print('script', sys.argv[1])")
    script = container_project.run("train.py", "--image", image, "--", "7")
    assert script.stdout.startswith("entered by prefix ") and "train.py 7" in script.stdout
    assert container_project.receipt()["header"]["image"]["tag"] == image


def test_a_program_in_an_image_without_python_is_measured_and_gets_its_secret(
    build_image: BuildImage, container_project: Project
) -> None:
    image = build_image(container_project.engine, f"FROM {IMAGE}\nRUN find / -xdev -name 'python*' ! -type d -delete")
    command = "echo no python in $SEATRIAL_RUN_ID, $TOKEN; sleep 3; exit 6"
    words = ["--image", image, "--gpus", "none", "--secret", "TOKEN"]
    ended = container_project.run(*words, "--", "sh", "-c", command, exit_code=1, TOKEN="hidden-0f7c")
    assert ended.stdout.startswith(f"no python in {container_project.last.name}, [redacted]\n")
    receipt = container_project.receipt()
    assert (receipt["exit_cause"]["id"], receipt["exit_cause"]["target_exit_code"]) == ("script-error", 6)
    assert 2.9 <= receipt["measurements"]["wall_s"] < 30 and receipt["measurements"]["samples"] >= 2
    assert receipt["seal"]["alterable"] is None
    assert container_project.containers() == []

    ended = container_project.run(
        "--image", image, "--gpus", "none", "--timeout", "1s", "--", "sleep", "60", exit_code=1
    )
    assert container_project.receipt()["exit_cause"]["id"] == "timeout"
    container_project.write("train.py", "")
    refused = container_project.run("train.py", "--image", image, exit_code=2)
    assert f"{image} has no Python >= 3.8 to run train.py" in refused.stderr
    assert len(container_project.runs) == 2


def test_a_base_image_that_is_not_there(container_project: Project) -> None:
    container_project.write("train.py", "")
    container_project.write("seatrial.toml", CONFIG + 'base = "localhost:1/no-such-base:1"\n')
    ended = container_project.run("train.py", exit_code=5)
    assert "the base image localhost:1/no-such-base:1 does not exist" in ended.stderr
    fixes = "correct the name and tag localhost:1/no-such-base:1", "seatrial run --on local"  # Docker: unreachable
    assert any(fix in ended.stderr for fix in fixes)


def test_a_ready_image_that_is_not_there(container_project: Project) -> None:
    ended = container_project.run("--image", "localhost:1/no-such-image:1", exit_code=5)
    assert "localhost:1/no-such-image:1" in ended.stderr and "fix: " in ended.stderr
    assert container_project.runs == []
