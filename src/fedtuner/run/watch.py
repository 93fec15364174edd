"""What a person sees while a study runs: a bar on a terminal, a line now and then elsewhere; and how it is stopped."""

from __future__ import annotations

import html
import math
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Any, TextIO

from fedtuner.core.metric import Metric
from fedtuner.core.schedule import outline
from fedtuner.errors import Interrupted, SpecError, brief
from fedtuner.run.session import Session
from fedtuner.run.words import duration

_NOBODY = (math.inf, -1)  # the score, and whose it is, before there is any
_TEXT = {rate: Metric(rate=rate).text for rate in (True, False)}
_MOMENT = 0.05  # seconds between statuses, as computing one reads the scores of all arms


@dataclass(frozen=True)
class Status:
    """How far a study is."""

    used: int  # rounds used, of those planned
    planned: int
    alive: int  # arms not yet eliminated, of those that start
    arms: int
    best: float | None  # the best score so far: of those at which arms were compared, or that were shown
    left: float | None  # seconds, from the pace so far
    arm: int | None = None  # whose score that is
    metric: str = "error"  # what it is: the study's target and the schedule's metric
    rate: bool = False  # whether it is shown in percent

    def __str__(self) -> str:
        whose = "" if self.arm is None else f" (arm {self.arm})"
        best = "" if self.best is None else f", best {self.metric} {_TEXT[self.rate](self.best)}{whose}"
        rounds = f"{self.used}/{self.planned} rounds, {self.alive} of {self.arms} arms alive"
        return f"{rounds}{best}, {duration(self.left)} left"

    def within(self, width: int) -> str:
        """Return it in as many words as have room."""
        rounds, left = f"{self.used}/{self.planned} rounds", f"{duration(self.left)} left"
        value = "" if self.best is None else _TEXT[self.rate](self.best)
        whose = "" if self.arm is None else f" (arm {self.arm})"
        best = [f"best {self.metric} {value}{whose}", f"best {self.metric} {value}", f"best {value}"] if value else []
        forms = [str(self), *(f"{rounds}, {one}, {left}" for one in best)]
        return next((form for form in forms if len(form) <= width), f"{rounds}, {left}")


Show = Callable[[Any], None]  # of a Status


class Meter:
    """Shows from time to time how far a session is; the time left is estimated from the speed since it was made."""

    def __init__(self, session: Session, show: Show) -> None:
        self._session, self._show, self._outline = session, show, outline(session.setup.schedule)
        self._began, self._before = time.monotonic(), session.journal.rounds_used
        self._best = _NOBODY
        self._shown, self._at = (-1, -1), -math.inf  # rounds used and planned when last shown, and when that was

    def tell(self) -> None:
        """Show the status, at most once per ``_MOMENT`` and at the end."""
        now, used, planned = time.monotonic(), self._session.journal.rounds_used, self._planned()
        if now - self._at > _MOMENT or (used >= planned and (used, planned) != self._shown):
            self._show(self.status())
            self._shown, self._at = (used, planned), now

    def status(self) -> Status:
        session, journal, scoring = self._session, self._session.journal, self._session.setup.schedule.scoring
        used, planned, seconds = journal.rounds_used, self._planned(), time.monotonic() - self._began
        done = used - self._before
        left = seconds / done * (planned - used) if done else None
        self._best = min(self._best, session.best() or _NOBODY)  # also of an arm that has become worse since
        best, arm = self._best if self._best is not _NOBODY else (None, None)
        judged = session.federation.model.metric if scoring.metric == "error" else Metric("loss")
        best = None if best is None else judged.turned(best)
        return Status(
            used, planned, len(session.alive), self._outline.arms, best, left,
            arm=arm, metric=f"{session.setup.target} {judged.name}", rate=judged.rate,
        )  # fmt: skip

    def _planned(self) -> int:
        # Rounds that an arm which has ended leaves may be given to another.
        return max(self._outline.cost - sum(self._session.short.values()), self._session.journal.rounds_used)


@dataclass(frozen=True)
class Evaluating:
    """How far an evaluation is."""

    used: int  # clients evaluated, of those planned
    planned: int
    left: float | None  # seconds, from the pace so far

    def __str__(self) -> str:
        return f"{self.used:,}/{self.planned:,} clients, {duration(self.left)} left"


class Counter:
    """Shows how far an evaluation is."""

    def __init__(self, show: Show) -> None:
        self._show, self._began = show, time.monotonic()

    def tell(self, done: int, of: int) -> None:
        took = time.monotonic() - self._began
        self._show(Evaluating(done, of, took / done * (of - done) if done else None))


@contextmanager
def showing(
    mode: bool | Show | None, label: str = "tuning", out: TextIO | None = None, every: float = 5.0
) -> Iterator[Show]:
    """Yield the function that shows statuses: the caller's own, none, a bar, or lines.

    None shows a bar on a terminal and in a notebook, and nothing elsewhere; True shows lines there, ``every`` so many
    seconds.
    """
    out = out or sys.stderr  # None where it was closed from the start
    if mode is not None and not callable(mode) and not isinstance(mode, bool):
        raise SpecError(f"progress = {brief(mode)}, but must be true, false or a function of a Status")
    if callable(mode):
        yield mode
    elif mode is not False and in_notebook():
        yield _notebook_bar(label)
    elif mode is False or out is None or (mode is None and not out.isatty()):
        yield lambda status: None
    elif out.isatty():
        with _bar(label, out) as show:
            yield show
    else:
        yield _lines(label, out, every)


@contextmanager
def _bar(label: str, out: TextIO) -> Iterator[Show]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    name, middle, words = TextColumn(f"[bold]{label}"), BarColumn(bar_width=24), TextColumn("{task.fields[detail]}")
    # Without a thread of its own: there should be none when workers fork.
    bar = Progress(name, middle, words, console=Console(file=out), transient=True, auto_refresh=False)
    task: Any = bar.add_task("", total=None, detail="")
    try:

        def show(status: Any) -> None:
            bar.start()  # not before there is something to show
            room = bar.console.width - len(label) - 1
            said = status.within(room) if hasattr(status, "within") else str(status)
            bar.columns = (name, middle, words) if len(said) + 25 <= room else (name, words)
            bar.update(task, total=status.planned, completed=status.used, detail=said, refresh=True)

        yield show
    finally:
        bar.stop()


def in_notebook() -> bool:
    """Return whether this is a Jupyter notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


def _notebook_bar(label: str) -> Show:
    """Return the function that shows statuses below a notebook's cell."""
    from IPython.display import HTML, display

    place: list[Any] = []  # not before there is something to show

    def show(status: Any) -> None:
        text = f"{html.escape(label)}: {html.escape(str(status))}"
        bar = HTML(f'<progress value="{status.used}" max="{max(1, status.planned)}"></progress> {text}')
        if place:
            place[0].update(bar)
        else:
            place.append(display(bar, display_id=True))

    return show


def _lines(label: str, out: TextIO, every: float) -> Show:
    said, finished = float("-inf"), False

    def show(status: Any) -> None:
        nonlocal said, finished
        if time.monotonic() - said >= every or (status.used == status.planned and not finished):
            said, finished = time.monotonic(), status.used == status.planned
            with suppress(OSError):  # whoever read this has gone, or there is no room for it: the study goes on
                print(f"{label}: {status}", file=out, flush=True)

    return show


@contextmanager
def stoppable(ours: bool = True) -> Iterator[Callable[[], bool]]:
    """Yield a function that says whether Ctrl-C (or SIGTERM) has come; a second one interrupts at once.

    A script that does not catch ``Interrupted`` ends with its message alone and exit code 3. Only the main thread can
    catch signals; elsewhere nothing stops. Where signals are not ``ours``, they stay with whoever has them.
    """
    if not ours or threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    asked = False

    def ask(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            again = "run the same command again to continue (from what the store has, if there is one)"
            raise Interrupted(f"stopped at once; {again}")
        asked = True
        if sys.excepthook is sys.__excepthook__:  # a notebook or a debugger has one of its own
            sys.excepthook = _end_in_words

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end_in_words(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """End a script that was stopped: its traceback would say where, which is by chance."""
    if not issubclass(kind, Interrupted):
        sys.__excepthook__(kind, error, trace)
        return
    print(f"fedtuner: {error}", file=sys.stderr)
    sys.exit(3)
