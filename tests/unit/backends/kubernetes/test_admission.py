"""Rules of the operators' webhooks: what they refuse is refused here, before anything is made."""

from __future__ import annotations

import pytest

from seatrial.backends.kubernetes.admission import check
from seatrial.errors import UsageError
from seatrial.system.project_files import parse_yaml
from tables import cases, constant

GOOD = constant(__file__, "GOOD")


@pytest.mark.parametrize("name", GOOD)
def test_what_the_operators_take_is_taken(name: str) -> None:
    check(parse_yaml(GOOD[name], name), None)


@cases("of", "old", "new", "words")
def test_what_the_operators_refuse_is_refused(of: str, old: str, new: str, words: str) -> None:
    assert old in GOOD[of]
    with pytest.raises(UsageError) as caught:
        check(parse_yaml(GOOD[of].replace(old, new), of), "job.yaml")
    assert words in caught.value.message and caught.value.cause and "webhook of " in caught.value.cause
    assert caught.value.run == "${EDITOR:-vi} job.yaml"
