"""The watchdog end to end: [watch] in seatrial.toml, a script that stops working, its line, finding and command."""

import json

HANG = """
import time
for step in range(3):
    end = time.monotonic() + 1
    while time.monotonic() < end:
        pass
    print("step", step)
time.sleep(9)
"""


def test_a_hang_is_told_on_the_terminal_in_the_receipt_and_to_the_command(local_project):
    told = local_project.folder / "told"
    local_project.write(
        "seatrial.toml",
        f'[watch]\nhang_after = "3s"\ncommand = \'echo "$SEATRIAL_FINDING_ID" >> {told}\'\n',
    )
    local_project.write("train.py", HANG)
    ended = local_project.run("train.py", "--gpus", "none", "--json")
    assert "warning: The run seems to hang (no step, no output and nothing computed for 3 s)" in ended.stderr
    [finding] = json.loads(ended.stdout)["findings"]
    assert finding["id"] == "hang" and finding["severity"] == "warning"
    assert told.read_text() == "hang\n"


def test_a_table_that_cannot_be_meant_is_one_sentence(local_project):
    local_project.write("train.py", "print(1)\n")
    local_project.write("seatrial.toml", '[watch]\nwebhook = "chat.example.org"\n')
    said = local_project.run("train.py", exit_code=2).stderr
    assert "watch.webhook" in said and "http or https URL" in said
    local_project.write("seatrial.toml", "[watch]\nhang_after = false\n")
    local_project.run("train.py", "--gpus", "none")
