"""The winner as files: the model as named tensors (a PyTorch ``state_dict``), and its configuration."""

from __future__ import annotations

import json
from pathlib import Path

from fedtuner import tables
from fedtuner.core.model import Part, named
from fedtuner.errors import SpecError, StoreError
from fedtuner.report.summary import journal_of, result, spec
from fedtuner.run.store import Folder
from fedtuner.run.store.files import replace_file


def export(path: Path, to: Path, force: bool = False) -> list[Path]:
    """Write the model and the configuration of a finished study; return the files. Reads the winner's state alone.

    Files that exist are replaced only with ``force``.
    """
    from safetensors.numpy import save

    study = journal_of(path)
    if study.won is None or study.begun is None:
        raise SpecError(f"{path} is not finished, so there is no winner: 'fedtuner run' continues it")
    won = (study.won.arm, study.won.round)
    state, _ = Folder(path).load(won, study.saved.get(won, ""))
    described, best = spec(study), result(study)
    parts = [Part(p["name"], tuple(p["shape"]), tuple(p["axes"])) for p in study.begun.layout]
    if sum(part.size for part in parts) != state.w.size:
        raise StoreError(f"{path}: the journal's layout is not that of the winner's state: restore it from a copy")
    configuration = {
        "method": described["method"],
        "server": best["server"],
        "client": best["client"],
        "theta": best["theta"],
        "candidates": best["candidates"],
        "rounds": best["rounds"],
        "problem": described["problem"]["name"],
        "seed": described["seed"],
    }
    files = {
        to / "model.safetensors": bytes(save(named(state.w, parts))),
        to / "configuration.json": (json.dumps(tables.plain(configuration), indent=2) + "\n").encode(),
    }
    try:
        to.mkdir(parents=True, exist_ok=True)
        for file in files:
            if file.exists() and not force:
                raise SpecError(f"{file} exists: give another folder (--to), or --force to replace it")
        for file, content in files.items():
            replace_file(file, content)
    except OSError as error:
        raise StoreError(f"cannot write to {to}: {error.strerror}") from error
    return list(files)
