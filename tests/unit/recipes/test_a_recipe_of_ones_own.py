"""A recipe is one file and one row of the table: this one is added to a copy of seatrial, and runs to its receipt."""

from __future__ import annotations

import pytest

from own_tree import Tree

COIN = '''"""coin: learns how often a coin shows heads."""

import argparse
import json
import os
import random
from pathlib import Path


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--flips", type=int, default=1000)
    parser.add_argument("--data")
    parser.add_argument("--models", type=Path, required=True)
    given = parser.parse_args()
    flips = [random.Random(0).random() < 0.5 for _ in range(given.flips)]
    share = sum(flips) / given.flips
    with open(os.environ["SEATRIAL_EVENTS"], "a") as events:
        events.write(json.dumps({"type": "step", "step": given.flips, "metrics": {"flips": given.flips}}) + "\\n")
    given.models.mkdir(parents=True, exist_ok=True)
    (given.models / "coin.pt").write_text(str(share))
    print("flipped", given.flips)


if __name__ == "__main__":
    main()
'''


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    tree = Tree(tmp_path_factory.mktemp("coin"))
    tree.add("recipes/coin.py", COIN)
    tree.put("images/recipes.py", '    "coin": Recipe(()),\n', after="RECIPES:")
    return tree


def test_it_is_one_file_and_one_row(tree: Tree) -> None:
    assert tree.touched == {"recipes/coin.py", "images/recipes.py"}


def test_it_runs_to_its_receipt(tree: Tree) -> None:
    project = tree.project()
    project.run("coin", "--gpus", "none", "--", "--flips", "10")
    assert project.output() == "flipped 10\n"
    receipt = project.receipt()
    assert receipt["exit_code"] == 0
    judged = {criterion["id"]: criterion["verdict"] for criterion in receipt["criteria"]}
    assert judged["model-saved"] == "pass"
