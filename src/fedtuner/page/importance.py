"""Which hyperparameters mattered: Optuna's PED-ANOVA (Watanabe, Bansal and Hutter, IJCAI 2023), where it is installed.

Arms are compared by their error after a round that all of them had: errors after different numbers of rounds would say
how long an arm was trained.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fedtuner.samplers.by_optuna import quiet

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

FEWEST = 8  # arms


def importance(configurations: Mapping[str, Any]) -> dict[str, Any]:
    """Return the share of each hyperparameter, or why there is none; from what ``view`` says of the arms."""
    axes = configurations["axes"]
    rows = [row for row in configurations["rows"] if row["early"] is not None and None not in row["values"]]
    if len(axes) < 2:
        return {"why": "One hyperparameter is tuned, or none: there is nothing to compare."}
    if len(rows) < FEWEST:
        return {"why": f"Arms with a finite error: {len(rows)}. They are too few to say which hyperparameter mattered."}
    try:
        import optuna
        from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
        from optuna.trial import create_trial
    except ImportError:
        return {"why": "The importance of hyperparameters needs Optuna: pip install 'fedtuner[optuna]'."}
    try:
        with quiet(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            optuna.logging.set_verbosity(optuna.logging.ERROR)
            study = optuna.create_study()
            for row in rows:
                params = {axis["name"]: _placed(axis, v) for axis, v in zip(axes, row["values"], strict=True)}
                spread = {axis["name"]: _distribution(axis) for axis in axes}
                study.add_trial(create_trial(params=params, distributions=spread, value=row["early"]))
            # A quarter of a few arms, where PED-ANOVA's default is a tenth of many trials.
            evaluator = PedAnovaImportanceEvaluator(target_quantile=0.25, region_quantile=1.0)
            found = get_param_importances(study, evaluator=evaluator)
    except (ValueError, RuntimeError) as error:
        return {"why": f"Optuna's PED-ANOVA has no answer for these arms ({error})."}
    return {"shares": [[name, float(share)] for name, share in found.items()], "arms": len(rows)}


def _placed(axis: Mapping[str, Any], value: Any) -> Any:
    """Return a value on its axis: they are rounded to a few digits, and 0 is on no logarithmic scale."""
    return value if axis["kind"] == "choice" else min(max(value, axis["low"]), axis["high"])


def _distribution(axis: Mapping[str, Any]) -> BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if axis["kind"] == "choice":
        return CategoricalDistribution(axis["choices"])
    kind = IntDistribution if axis.get("whole") else FloatDistribution
    return kind(axis["low"], axis["high"], log=axis["kind"] == "log")
