"""The watchdog end to end: [watch] in seatrial.toml, a script that stops working, its line, finding and command."""

import json

HANG = """
import os, time
for step in range(3):
    end = time.monotonic() + 1
    while time.monotonic() < end:
        pass
    print("step", step)
while not os.path.exists("sent"): time.sleep(0.1)
"""


#: Continues once its first finding was sent, and ends once its second was sent.
FULL = """
import os, time
def wait_for(count):
    while not os.path.exists("sent") or len(open("sent").read().split()) < count: time.sleep(0.1)
open("/dev/shm/x", "wb").write(b"x" * 61_000_000)
wait_for(1)
kept = bytearray(118_000_000)
for page in range(0, len(kept), 4096):
    kept[page] = 1
wait_for(2)
"""


def test_what_runs_full_in_a_container_is_reported_before_it_is(container_project):
    container_project.write("train.py", FULL)
    container_project.write(
        "seatrial.toml",
        'gpus = "none"\nshm_size = "64MB"\nmemory = "200MB"\n[watch]\n'
        "command = 'echo \"$SEATRIAL_FINDING_ID\" >> /workspace/sent'\n",
    )
    ended = container_project.run("train.py", "--image", "python:3.11-slim-bookworm")
    reported = ["shared-memory-nearly-full", "host-memory-nearly-full"]
    assert (container_project.folder / "sent").read_text().split() == reported
    assert [finding["id"] for finding in container_project.receipt()["findings"]] == reported
    assert "warning: /dev/shm is nearly full (95 % of /dev/shm in use)" in ended.stderr


def test_a_hang_is_reported_everywhere(local_project):
    """On the terminal, in the receipt and to the command."""
    reported = local_project.folder / "sent"
    local_project.write(
        "seatrial.toml",
        f'[watch]\nhang_after = "3s"\ncommand = \'echo "$SEATRIAL_FINDING_ID" >> {reported}\'\n',
    )
    local_project.write("train.py", HANG)
    ended = local_project.run("train.py", "--gpus", "none", "--json")
    assert "warning: The run seems to hang (no step, no output and no GPU work for 3 s)" in ended.stderr
    [finding] = json.loads(ended.stdout)["findings"]
    assert finding["id"] == "hang" and finding["severity"] == "warning"
    assert reported.read_text() == "hang\n"


def test_a_table_that_cannot_be_intended_is_one_sentence(local_project):
    local_project.write("train.py", "print(1)\n")
    local_project.write("seatrial.toml", '[watch]\nwebhook = "https://chat.example.org"\n')
    printed = local_project.run("train.py", exit_code=2).stderr
    assert "watch.webhook was removed: use watch.command" in printed and "command" in printed
    local_project.write("seatrial.toml", "[watch]\nhang_after = false\n")
    local_project.run("train.py", "--gpus", "none")
