"""A study as a person reads it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedtuner.core.metric import Metric
from fedtuner.core.schedule import outline, unused
from fedtuner.errors import counted, one_line
from fedtuner.report.console import console
from fedtuner.report.served import said
from fedtuner.report.summary import is_fedex
from fedtuner.run import spec, words
from fedtuner.run.auto import differing
from fedtuner.run.export import changes
from fedtuner.run.journal import Held
from fedtuner.schedules import KINDS

if TYPE_CHECKING:
    from rich.console import Console

_DEVICES = 5  # that are named


def headline(described: Mapping[str, Any], arms: int | None = None) -> str:
    """Return one line that says what a study is; ``arms`` is how many it starts, where the schedule is one's own."""
    arms = _arms(described["schedule"]) if arms is None else arms
    schedule, tuner, ends = described["schedule"], described["tuner"], ""
    if schedule["kind"] == "patient":
        ends = f", ended if no score improves for {counted(schedule['patience'], 'round')}"
        schedule = {**schedule["first"], "budget": schedule["budget"], "longest": schedule["longest"]}
    outside = _name(schedule) + (f" of {counted(arms, 'arm')}" if arms else "")
    if schedule["kind"] == "fedpop":
        paired = ", compared on the same clients" if schedule["paired"] else ""
        outside = (
            f"FedPop's population of {counted(arms or 0, 'arm')}, evolving every {schedule['interval']} rounds{paired}"
        )
    if schedule["kind"] == "duel":
        outside = "the default alone"
        if schedule["arms"] > 1:
            differ = f"{schedule['arms']} arms that differ in {differing(described)}"
            outside = f"{differ}, a duel of the best with the default, a long run"
    inside = _inside(tuner)
    problem, rounds = described["problem"], counted(schedule["budget"], "round")
    clients = counted(problem["clients"], "client") if "clients" in problem else "clients"
    return (
        f"{problem['name']}: {clients}, {described['method']}; {outside}{inside}{ends}; {rounds}{_left(schedule)}, "
        f"at most {schedule['longest']} an arm; seed {described['seed']}"
    )


def _inside(tuner: Any) -> str:
    """Return the words for what tunes within an arm."""
    if is_fedex(tuner) or _name(tuner) == "kernel":
        named = "FedEx" if is_fedex(tuner) else "FedEx by a kernel"
        return f" around {named} with {tuner['k']} candidates each" if tuner["k"] > 1 else ""
    if _name(tuner) == "gaussian":
        return " around a Gaussian belief of each arm"
    if _name(tuner) == "fedpop":
        return f" around {counted(tuner['k'], 'client vector')} each"
    return "" if _name(tuner) == "none" else f" around {_name(tuner)}"


def _left(schedule: Mapping[str, Any]) -> str:
    """Return the words for rounds that a schedule will not use; none if it is one's own."""
    left = unused(spec.schedule(schedule)) if schedule["kind"] in KINDS else 0
    return f", of which {left} {'stays' if left == 1 else 'stay'} unused" if left else ""


def _arms(schedule: Mapping[str, Any]) -> int | None:
    """Return how many arms a schedule starts; None if it is one's own: nobody's code is run to show a study."""
    return outline(spec.schedule(schedule)).proposed if schedule["kind"] in KINDS else None


def _name(table: Any) -> str:
    """Return a kind as a person says it: of ``package.module:Class`` the class."""
    kind = table["kind"] if isinstance(table, Mapping) else table
    return str(kind).rpartition(":")[2].replace("_", " ")


def print_summary(summary: Mapping[str, Any], arms: bool = True) -> None:
    """Print a study, with a table of its arms if it is not finished, or if they are asked for."""
    from rich.markup import escape
    from rich.table import Table

    out = console()
    result, described, store = summary["result"], summary["spec"], escape(summary["store"])
    metric = Metric.of(described["problem"])
    defaults = described.get("defaults", {})
    if result is None:
        out.print(escape(headline(described)))
        out.print(f"Not finished: {summary['rounds_used']} of {summary['budget']} rounds used.")
        _print_arms(out, summary, metric)
        _print_served(out, summary, metric)
        _print_devices(out, summary)
        _print_failed(out, summary)
        out.print(f"To continue, run the command that made it, with --store {store}")
        return
    if arms:
        out.print(escape(headline(described, _arms(described["schedule"]))))
        _print_arms(out, summary, metric)
        out.print()
    ended = "".join(
        f"; {len(result[why])} of {len(summary['arms'])} arms {why}" for why in ("diverged", "stalled") if result[why]
    )
    out.print(
        f"[bold]Best: arm {result['arm']}[/bold], trained for {counted(result['rounds'], 'round')}; the study used "
        f"{result['rounds_used']} of {result['budget']}{ended}. Clients trained {summary['local_work']} times, on "
        f"{summary['examples_processed']:,} examples in all."
    )
    _print_failed(out, summary)
    if math.isinf(result["score"]):
        why = "diverged or stalled" if result["stalled"] else "diverged"
        said = f"Every arm {why}: narrow the space (lower learning rates), or raise the budget."
        if not any(arm["ended"] for arm in summary["arms"]):
            missing = f"{metric.name} is not defined for the clients who validate, or none has validation examples"
            said = f"No arm has a score, so the first one has won: {missing}."
        out.print(f"[red]{escape(said)}[/red]")
    table = Table("", "configuration found", box=None, pad_edge=False, header_style="dim")
    table.add_row(
        "server",
        escape(
            (_config(result["server"], described["server"], defaults.get("server")) or "nothing was tuned")
            + _steps(result, described, summary["cooled"])
        ),
    )
    confidence = max(result["theta"])
    sure = (
        f"  [dim](theta {confidence:.2f} of {len(result['theta'])} candidates)[/dim]"
        if len(result["theta"]) > 1
        else ""
    )
    table.add_row(
        "client",
        escape(_config(result["client"], described["client"], defaults.get("client")) or "nothing was tuned") + sure,
    )
    out.print(table)
    _print_schedule(out, result["schedule"])
    if not result["fine_tune"]:
        out.print("Fine-tuning does not pay: in its last rounds clients' errors rose by it. Use the global model.")
    if summary["evaluations"]:
        out.print()
        _print_evaluations(out, summary, metric)
        _print_verdict(out, summary, metric)
    if arms:
        _print_served(out, summary, metric)
    _print_devices(out, summary)
    out.print(f"\nKept in {store}: fedtuner show {store}, fedtuner export {store}")


def _print_schedule(out: Console, held: Sequence[Mapping[str, Any]]) -> None:
    """Print the hyperparameters that changed while the winner's model was trained."""
    from rich.markup import escape
    from rich.table import Table

    names, rows = changes([Held(**one) for one in held])
    if names:
        out.print("What changed while its model was trained, its ancestors' rounds first:")
        table = Table("rounds", "arm", *map(escape, names), box=None, pad_edge=False, header_style="dim")
        for row in rows:
            table.add_row(*map(escape, row))
        out.print(table)


def _print_devices(out: Console, summary: Mapping[str, Any]) -> None:
    """Name the devices whose replies could not be used or came too late."""
    for what, found in (("could not be used", summary["unusable"]), ("came after their round", summary["late"])):
        if found:
            shown = ", ".join(f"{n} of {id}" for id, n in list(found.items())[:_DEVICES])
            more = f", and of {len(found) - _DEVICES} more devices" if len(found) > _DEVICES else ""
            out.print(f"\nReplies that {what}: {shown}{more}.", markup=False)


def _print_served(out: Console, summary: Mapping[str, Any], metric: Metric) -> None:
    """Print the validation errors of all clients, of the worst tenth and of each group."""
    from rich.markup import escape
    from rich.table import Table

    found = summary["served"]
    if found is None:
        return
    about = f"validation {metric.name}, arm {found['arm']}, rounds {found['from']} to {found['until']}"
    table = Table(about, "clients", "global", "personalized", box=None, pad_edge=False, header_style="dim")
    for row in found["whom"]:
        errors = (metric.text(float(row[side])) for side in ("global", "personalized"))
        table.add_row(escape(one_line(said(row["who"]))), str(row["clients"]), *errors)
    out.print()
    out.print(table)


def _print_verdict(out: Console, summary: Mapping[str, Any], metric: Metric) -> None:
    """Say so where the winner is no better than the untuned default on validation data."""
    evaluations, side, schedule = summary["evaluations"], summary["spec"]["target"], summary["spec"]["schedule"]
    while "first" in schedule:
        schedule = schedule["first"]
    alone = schedule.get("arms") == 1 and len(summary["result"]["theta"]) == 1
    tuned, untuned = (evaluations.get(name, {}).get("valid mode error", {}) for name in ("tuned", "untuned"))
    if side in tuned and side in untuned and not tuned[side] < untuned[side]:
        how, rounds = "higher" if metric.maximise else "lower", summary["untuned_rounds"]["untuned"]
        what = "what the budget chose" if alone else "tuning"  # alone: how the server steps, and no more
        out.print(
            f"On validation data the {side} {metric.name} is no {how} than that of the untuned default with "
            f"{'the same ' if rounds == summary['budget'] else ''}{counted(rounds, 'round')}: here {what} has not paid."
        )


def _print_evaluations(out: Console, summary: Mapping[str, Any], metric: Metric) -> None:
    from rich.markup import escape
    from rich.table import Table

    evaluations = summary["evaluations"]
    samples = {int(v["sample"]): v for kept in evaluations.values() for v in kept.values() if "sample" in v}
    over = f"{metric.name} over {'' if samples else 'all '}clients (95 %)"
    table = Table(over, "global", "personalized", box=None, pad_edge=False, header_style="dim")
    for name, kept in evaluations.items():
        for key, value in kept.items():
            split, config, measured = key.split(" ")
            if measured == "error":
                how = f"{_whose(name, summary)}, {split}" + (", sampled configurations" if config == "sample" else "")
                how += f" ({_drawn(value)})" if "sample" in value else ""
                how += f" (missing clients: {value['missing']})" if "missing" in value else ""
                how += f" (undefined for {counted(int(value['undefined']), 'client')})" if "undefined" in value else ""
                spread, sides = summary["spreads"][name][f"{split} {config}"], ("global", "personalized")
                table.add_row(how, *(metric.text(float(value[side]), float(spread[side])) for side in sides))
                apart = {"tuned": summary["across"], "untuned": summary["untuned_across"]}.get(name, {})
                for who, errors in apart.get("test mode", {}).items() if key == "test mode error" else ():
                    text = f"  {escape(one_line(said(who)))}"
                    table.add_row(text, *(metric.text(float(error)) for error in errors))
    out.print(table)
    for value in samples.values():
        out.print(
            f"Evaluated on {_drawn(value)}, drawn in proportion to their examples. In brackets: the interval of 95 % "
            "for the mean over all clients by examples."
        )
    for line in without_examples(evaluations):
        out.print(line)


def _whose(name: str, summary: Mapping[str, Any]) -> str:
    """Return in words which model was evaluated."""
    if name == "tuned":
        return name
    if name not in summary["untuned_rounds"]:
        return f"retrained from new weights, {name.rpartition('-')[2]} rounds"
    rounds, long = summary["untuned_rounds"][name], ""
    if name == "untuned_as_long":
        winner = rounds == summary["result"]["rounds"]
        long = f"as long as the {'winner' if winner else 'longest arm may be'}: "
    return f"untuned (the default, {long}{counted(rounds, 'round')})"


def _drawn(value: Mapping[str, Any]) -> str:
    return f"{int(value['clients']):,} of {int(value['population']):,} clients"


def without_examples(evaluations: Mapping[str, Any]) -> list[str]:
    """Return a line for each split of which no client has examples: there is no error to tell."""
    measured: dict[str, bool] = {}
    for kept in evaluations.values():
        for key, value in kept.items():
            split = key.partition(" ")[0]
            measured[split] = measured.get(split, False) or not math.isnan(float(value["global"]))
    return [f"N{words.without_examples(split)[1:]}." for split, some in measured.items() if not some]


def _print_failed(out: Console, summary: Mapping[str, Any]) -> None:
    """Print the errors that ended arms."""
    from rich.markup import escape

    for error in summary["failed"].values():
        out.print(f"[red]Failed: {escape(error)}[/red]")


def _print_arms(out: Console, summary: Mapping[str, Any], metric: Metric) -> None:
    """Print a line for each arm: what became of it, its score at the end, and what was tuned of its configuration."""
    from rich.markup import escape
    from rich.table import Table

    described, schedule = summary["spec"], summary["spec"]["schedule"]
    metric = metric if schedule["score"] == "error" else Metric("loss")
    defaults = described.get("defaults", {})
    name = f"{described['target']} {metric.name} (95 %)"
    table = Table("arm", "rounds", "", name, "configuration", box=None, pad_edge=False, header_style="dim")
    for arm in summary["arms"]:
        status = f"out at {arm['eliminated']}" if arm["eliminated"] is not None else arm["status"]
        status = f"{arm['ended']}, {status}" if arm["ended"] and arm["ended"] != status else status
        parent = "" if arm["parent"] is None else f", from arm {arm['parent']} at {arm['parent_round']}"
        client = _config(arm["client"], described["client"], defaults.get("client"))
        server = _config(arm["server"], described["server"], defaults.get("server"), server=True)
        score = metric.text(float(arm["score"]), float(arm["spread"]))
        config = "  ".join(filter(None, (client, server))) or "the default"
        table.add_row(str(arm["arm"]), str(arm["rounds"]), status + parent, score, escape(config))
    out.print(table)


def _steps(result: Mapping[str, Any], described: Mapping[str, Any], cooled: float) -> str:
    """Return how the server steps, as far as it was not tuned: its optimiser, and over which part it was cooled."""
    optimiser, known = result["server"].get("optimiser", "sgd"), described.get("defaults", {}).get("server", {})
    said = optimiser == "sgd" or _config({"optimiser": optimiser}, described["server"], known)
    how = [] if said else [f"optimiser {optimiser}"]
    if part := round(100 * cooled):
        how.append(f"cooled over the last {part} % of its rounds")
    return f"  ({', '.join(how)})" if how else ""


def _config(
    config: Mapping[str, Any], tuned: Mapping[str, Any], given: Mapping[str, Any] | None = None, server: bool = False
) -> str:
    """Return what was searched, and what differs from the defaults (``given``) otherwise or has none."""
    known = given or {}
    searched = {k for k, domain in tuned.items() if isinstance(domain, (Mapping, list)) or k not in known}
    values = {k: v for k, v in config.items() if k in searched or v != known.get(k, v)}
    side = "server." if server else ""
    return "  ".join(f"{side}{k} {v:.4g}" if isinstance(v, float) else f"{side}{k} {v}" for k, v in values.items())
