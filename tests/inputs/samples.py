"""A suite, and a result of it, that are right."""

from __future__ import annotations

RESULT = {
    "labels": {"a": "x"}, "seed": 0, "problem": {"name": "toy"}, "target": "global",
    "test": {"global": 0.5, "personalized": 0.5}, "rounds": 9, "trainings": 27, "arms": 1, "diverged": [], "broken": 0,
    "dropped": 0,
}  # fmt: skip
FIGURES = {"suite": {"figures": [{"kind": "sweep", "x": "a"}]}}
SUITE = '[base]\nproblem = "toys:problem"\ncohort = 3\n[axes.a.x]\nmethod = "fedavg"\n'
