"""A made-up script for the driver: changes → the result of a trial. Import as ``from tune_worlds import World``."""

from __future__ import annotations

from seatrial.agent.tune.trial import TuneTrial

SHARES = {"data": 0.02, "copy": 0.01, "other": 0.4, "backward": 0.4, "optimizer": 0.15, "sync": 0.02}


class World:
    """A script whose steps take ``base_s``, and with a change of ``factors`` so much less.

    Attributes:
        factors: (key, value) → factor of the step's time. shifts: (key, value) → what the losses differ by.
        broken: (key, value) → what the trial prints before it fails. refused: key → why.
        crawls: [key, value] of changes with one step in a trial.
        waits: share of marks at which the GPU has caught up; walls_s: of single trials, by number.
        jitter: factors of the step's time, one for each trial in turn. steady: (key, value) → what is left of it.
    """

    def __init__(self, base_s=0.01, regions=None, device="cuda", workers=0, wall_s=5.0, **facts):
        self.base_s, self.regions, self.wall_s = base_s, regions or SHARES, wall_s
        self.factors, self.shifts, self.broken, self.refused, self.crawls = {}, {}, {}, {}, []
        self.jitter, self.steady = [1.0], {}
        self.facts = {
            "device": device,
            "optimizer": "AdamW",
            "parameter_dtype": "float32",
            "convolutions": True,
            **facts,
        }
        if workers is not None:
            self.facts["loader"] = {"workers": workers, "pin_memory": False}
        self.exit_code, self.output, self.steps, self.ended, self.losses = 0, "", 60, "steps", True
        self.waits, self.walls_s = None, {}
        self.ran, self.clock_s = [], 0.0

    def run(self, spec, number, changes, seed_offset, limit_s, ahead=None, tried=()):
        self.ran.append(dict(changes))
        wall_s = self.walls_s.get(number, self.wall_s) + (20 if "compile" in changes else 0)
        self.clock_s += min(wall_s, limit_s)
        done = {item for item in changes.items() if item[0] not in self.refused}
        output = next((text for item, text in self.broken.items() if item in done), None)
        if output is not None:
            return self._trial(number, changes, seed_offset, None, 1, output)
        if wall_s > limit_s:
            return self._trial(number, changes, seed_offset, None, None, "")
        calm = min([self.steady[item] for item in done if item in self.steady], default=1.0)
        step_s = self.base_s * (1 + calm * (self.jitter[(number - 1) % len(self.jitter)] - 1))
        for item, factor in self.factors.items():
            step_s *= factor if item in done else 1
        shift = sum(by for item, by in self.shifts.items() if item in done)
        losses = [2.0 - 0.01 * at + 0.05 * ((seed_offset * 7 + at) % 3) * bool(seed_offset) + shift for at in range(70)]
        regions = dict(self.regions)
        if ("workers", 8) in done:
            regions["data"] = 0.01
        report = {
            "pid": 1, "rank": 0, "world": 1, "ended": self.ended, "all_steps": self.steps + 10, "steps": self.steps,
            "seed_offset": seed_offset,
            "steps_per_s": 1 / step_s, "examples_per_s": 16 / step_s, "losses": losses if self.losses else [],
            "parts_s": [step_s * (1 + 0.01 * calm * (at % 2)) for at in range(6)], "regions": regions,
            "peak_bytes": 10**9,
        }  # fmt: skip
        if any([key, value] in self.crawls for key, value in done):
            slow = {**report, "ended": "seconds", "all_steps": 2, "steps": 1}
            return self._trial(number, changes, seed_offset, slow, 0, "warnings.warn(\n")
        return self._trial(number, changes, seed_offset, report, self.exit_code, self.output)

    def _trial(self, number, changes, seed_offset, report, code, output):
        applied = {key: value for key, value in changes.items() if key not in self.refused}
        window = {"window": {"caught_up": [round(100 * self.waits), 100]}} if self.waits is not None else {}
        return TuneTrial(
            number=number, report=report, ranks=[report] if report else [],
            applied=applied, refused={key: self.refused[key] for key in changes if key in self.refused}, places={},
            anatomy=window, facts=self.facts, exit_code=code, output=output, lines=[], restored={},
            wall_s=self.walls_s.get(number, self.wall_s),
        )  # fmt: skip
