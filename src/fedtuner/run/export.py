"""The winner as files: the model as named tensors (a PyTorch ``state_dict``), its configuration, a loader, a card."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedtuner import tables
from fedtuner.core.place import Place
from fedtuner.errors import SpecError, StoreError, counted
from fedtuner.run.journal import Held, Journal
from fedtuner.run.reading import read
from fedtuner.run.store import at
from fedtuner.run.store.files import replace_file
from fedtuner.run.words import without_examples
from fedtuner.space import flat

if TYPE_CHECKING:
    from fedtuner.run.result import Best, Results

LOADER = '''"""Load the tuned model. In Python: ``from load import arrays, configuration, load``."""

import json
from pathlib import Path

FOLDER = Path(__file__).resolve().parent


def configuration():
    """Return the configuration that was found: method, server, client and the rest."""
    return json.loads((FOLDER / "configuration.json").read_text())


def arrays():
    """Return the model as NumPy arrays by name."""
    from safetensors.numpy import load_file

    return load_file(FOLDER / "model.safetensors")


def load(model):
    """Load it into a PyTorch module, or a fitted scikit-learn estimator, of the kind that was tuned; return that."""
    if hasattr(model, "load_state_dict"):
        from safetensors.torch import load_file

        model.load_state_dict(load_file(FOLDER / "model.safetensors"))
        return model
    for name, array in arrays().items():  # coef_, intercept_; or coefs_.0, coefs_.1 ...
        held, _, place = name.partition(".")
        if place:
            getattr(model, held)[int(place)] = array
        else:
            setattr(model, held, array)
    return model


if __name__ == "__main__":
    print(json.dumps({side: configuration()[side] for side in ("server", "client")}, indent=2))
    for name, array in arrays().items():
        print(name, array.shape)
'''


def write(study: Results, to: Path, force: bool) -> list[Path]:
    """Write the files of a finished study and return them. Reads the winner's state alone."""
    from safetensors.numpy import save

    if not study.finished:
        remedy = "'fedtuner run' (study.run()) continues it"
        raise SpecError(f"{study.path or 'the study'} is not finished, so there is no winner: {remedy}")
    best, journal = study.best, study.journal
    assert journal.begun is not None
    configuration = {
        "method": journal.setup["method"],
        "server": best.server,
        "client": best.client,
        "theta": best.theta,
        "candidates": best.candidates,
        "rounds": best.rounds,
        "schedule": [vars(held) for held in best.schedule],
        "problem": journal.begun.federation["name"],
        "seed": journal.setup["seed"],
    }
    files = {
        to / "model.safetensors": bytes(save(dict(study.arrays()))),
        to / "configuration.json": (json.dumps(tables.plain(configuration), indent=2) + "\n").encode(),
        to / "load.py": LOADER.encode(),
        to / "README.md": card(journal, best, study.path).encode(),
    }
    if to.is_file():
        raise SpecError(f"{to} is a file, but must be a folder: give another (--to)")
    try:
        to.mkdir(parents=True, exist_ok=True)
        for file in files:
            if file.exists() and not force:
                raise SpecError(f"{file} exists: give another folder (--to), or --force (force=True) to replace it")
        for file, content in files.items():
            replace_file(file, content)
    except OSError as error:
        raise StoreError(f"cannot write to {to}: {error.strerror}") from error
    return list(files)


def card(journal: Journal, best: Best, path: Place | None) -> str:
    """Return the model card: what was tuned, on what, with which rounds, and the errors with intervals."""
    begun, setup = journal.begun, journal.setup
    assert begun is not None
    about = begun.federation
    clients = counted(about["clients"], "client") if "clients" in about else "clients"
    tuned = flat(setup["client"], setup["server"]).items()
    searched = [f"`{name}` in {_domain(domain)}" for name, domain in tuned if isinstance(domain, (Mapping, list))]
    found = [f"| server.{name} | {_text(value)} |" for name, value in best.server.items()]
    found += [f"| client.{name} | {_text(value)} |" for name, value in best.client.items()]
    lines = [
        f"# {about['name']}, {'tuned' if len(journal.arms) > 1 else 'trained'} with fedtuner",
        "",
        f"A model trained by federated learning ({setup['method']}) on {about['name']}: {clients}, "
        f"{setup['cohort']} a round. {_loading(begun.code)}",
        "",
        "## Configuration",
        "",
        "| hyperparameter | value |\n| --- | --- |",
        *found,
        "",
        f"Tuned: {', '.join(searched) or 'nothing'}. The rest was given, or is the method's default."
        if len(journal.arms) > 1
        else "Nothing was searched: all rounds went to the given configuration, or the method's default.",
        "",
        *_over_rounds(best),
        "## Rounds",
        "",
        f"The study used {journal.rounds_used} of {journal.budget} communication rounds over "
        f"{counted(len(journal.arms), 'arm')} (schedule: {tables.plain(setup['schedule'])['kind']}). This model "
        f"had {best.rounds} of them. Clients trained {journal.trainings:,} times, on {journal.processed:,} examples in "
        f"all. Seed {setup['seed']}.",
        "",
        "## Errors",
        "",
        *_errors(journal, path),
        "",
        "Versions: " + (", ".join(f"{name} {v}" for name, v in begun.versions.items()) or "not recorded") + ".",
    ]
    return "\n".join(lines) + "\n"


def _loading(code: Mapping[str, Any]) -> str:
    """Return how the model is loaded, by the code that it was known by."""
    if "build" in code:
        what, use = (
            "is a PyTorch `state_dict`",
            "load\n\nmodule = load(build())  # build() returns the module that was tuned",
        )
    elif "estimator" in code:
        what = "has the coefficients of a scikit-learn estimator"
        use = "load\n\nestimator = load(estimator)  # one that partial_fit has seen examples of every class"
    else:
        what, use = (
            "has the model's arrays by name",
            "arrays\n\nprint({name: array.shape for name, array in arrays().items()})",
        )
    return f"`model.safetensors` {what}; `load.py` loads it:\n\n```python\nfrom load import {use}\n```"


def _text(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _over_rounds(best: Best) -> list[str]:
    """Return a table of the hyperparameters that changed while the model was trained; nothing if none did."""
    names, rows = changes(best.schedule)
    if not names:
        return []
    return [
        "These are the values of the last rounds. Over its rounds the model was trained with (`schedule` in "
        "`configuration.json`):",
        "",
        f"| rounds | arm | {' | '.join(names)} |\n{'| --- ' * (2 + len(names))}|",
        *(f"| {' | '.join(row)} |" for row in rows),
        "",
    ]


def changes(schedule: Sequence[Held]) -> tuple[list[str], list[list[str]]]:
    """Return the hyperparameters that changed over a model's rounds, and rows of rounds, arm and their values."""
    flat = [
        {f"{side}.{n}": v for side in ("server", "client") for n, v in getattr(one, side).items()} for one in schedule
    ]
    names = [
        n for n in dict.fromkeys(n for one in flat for n in one) if any(one.get(n) != flat[0].get(n) for one in flat)
    ]
    rows = [
        [f"{held.first} to {held.last}", str(held.arm), *(_text(one.get(name, "")) for name in names)]
        for held, one in zip(schedule, flat, strict=True)
    ]
    return names, rows


def _domain(domain: Any) -> str:
    """Return a range or list of choices as a person reads it."""
    if isinstance(domain, list):
        return "{" + ", ".join(map(str, domain)) + "}"
    if "when" in domain:
        inner = {name: value for name, value in domain.items() if name not in ("when", "otherwise")}
        on = " and ".join(f"{name} is {' or '.join(map(str, some))}" for name, some in domain["when"].items())
        return f"{_domain(inner.get('values', inner))} where {on}"
    if "one_minus" in domain:
        return f"1 - {_domain(domain['one_minus'])}"
    if "low" in domain:
        more = [name.replace("_", " ") for name in domain if name not in ("low", "high") and domain[name]]
        return f"[{domain['low']}, {domain['high']}]" + (f" ({', '.join(more)})" if more else "")
    return str(tables.plain(domain))


def _errors(journal: Journal, path: Place | None) -> list[str]:
    """Return a table of what was evaluated: of the winner, and of the untuned default if it was trained."""
    studies = {"this model": journal}
    default = None if path is None else at(path / journal.untuned)
    if default is not None and default.exists():
        studies["the untuned default"] = read(default, str(default.path))
    metric, rows, text = journal.metric, [], journal.metric.text
    for name, study in studies.items():
        for (key, split, how), result in study.evaluations.items():
            if study.won is not None and key == (study.won.arm, study.won.round) and how == "mode":
                of = f" drawn of {result.population}" if result.sample else ""
                rows.append((f"{name}, {split}, {result.clients} clients{of}, {result.validated} examples", result))
    if not rows:
        return ['Not evaluated: `study.evaluate("test")` before the export.']
    none = dict.fromkeys(
        split for study in studies.values() for (_, split, _), result in study.evaluated.items() if not result.validated
    )
    over = "over all clients' examples" if metric.pooled else "mean over clients, by examples"
    known = any(math.isfinite(spread) for _, r in rows for _, spread in map(r.found, ("before", "after")))
    why = f"there is none of {metric.name} over all examples together" if metric.pooled else "the server saw only sums"
    interval = "In brackets: the interval of 95 % over clients." if known else f"Without intervals over clients: {why}."
    return [
        f"| {metric.name}: {over} | global | personalized |\n| --- | --- | --- |",
        *(f"| {name} | {text(*r.found('before'))} | {text(*r.found('after'))} |" for name, r in rows),
        "",
        *(f"N{without_examples(split)[1:]}." for split in none),
        f"{interval} *Personalized*: after each client has fine-tuned the model.",
    ]  # fmt: skip
