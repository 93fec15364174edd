"""The executor of a Ray cluster: it hands out arms and takes their rounds; a transport that only submits and waits.

A worker has up to two calls to advance its arm, so that it works on while the driver saves a state. When no arm is
waiting, idle workers help with the clients of those that run. All that the driver keeps of a running arm is its latest
state: if the worker or its node dies, another continues from there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fedtuner.core.executor import Advance, Progress, Stop
from fedtuner.core.records import Blob, Plan, Report, State, Tally
from fedtuner.core.round import Round
from fedtuner.core.setup import size_of
from fedtuner.core.store import Blobs
from fedtuner.errors import WorkerError
from fedtuner.run.executors import policy
from fedtuner.run.executors.on_ray import Ray
from fedtuner.run.executors.on_ray.team import Member, Team
from fedtuner.run.executors.on_ray.wire import RayWire, Wire
from fedtuner.run.executors.on_ray.worker import Stretch

_AHEAD = 2  # calls that a worker has: it does the next one while the driver looks at the last
_AT_ONCE = 50  # of so many calls, one answer is worth a look
_PART = 0.25  # of the object store's memory on the driver's node that states may take
_SHARES = 4  # of an evaluation, per worker
_TRIES = 3  # workers that may die on a task; then it is an error


@dataclass(eq=False)
class _Call:
    """A call that was made."""

    ref: Any
    size: int = 0  # bytes that it moves
    helpers: tuple[Member, ...] = ()


@dataclass(eq=False)
class _Lead:
    """A worker and its arm."""

    member: Member
    task: Advance
    deaths: int  # of workers at this task since it last reported a state
    reached: int
    taken: _Call | None = None  # the handing over, until it is done
    calls: deque[_Call] = field(default_factory=deque)
    helpers: list[Member] = field(default_factory=list)
    shipped: float = 0.0  # when its state last came


class Driver:
    """Workers of a Ray cluster."""

    def __init__(
        self, round: Round, blobs: Blobs, settings: Ray, workers: int | None, wire: Wire | None = None
    ) -> None:  # fmt: skip
        self._wire = wire = RayWire(settings) if wire is None else wire
        self._round, self._settings = round, settings
        self._team = Team(wire, round, blobs, settings, workers)
        self._moving = 0  # bytes of states on their way
        self._room = wire.room(_PART)
        engine = round.federation.model.engine(round.setup.engine)
        jobs = size_of(round.setup.cohort, round.federation.population())
        self._most_helpers = jobs - 1 if engine.divisible else 0

    def advance(self, work: Sequence[Advance], stop: Stop) -> Iterator[Progress]:
        """Advance the arms, longest first, each on the next free worker."""
        todo = deque((one, 0) for one in policy.longest_first(work) if not one.done)
        leads: list[_Lead] = []
        try:
            while leads or (todo and not stop()):
                for gone in self._team.staff((len(todo) + len(leads)) * (1 + self._most_helpers)):
                    self._reassign(gone, leads, todo)
                stopping = stop()
                if not stopping:
                    self._hand_out(todo, leads)
                    self._give_helpers(todo, leads)
                for lead in list(leads):
                    if stopping and not lead.calls and lead.task.state.round == lead.reached:
                        self._dismiss(lead, leads)
                    else:
                        self._call(lead, stopping, len(leads))
                yield from self._answers(leads, todo)
        finally:
            for lead in leads:  # their answers are no longer read
                lead.member.holds, lead.member.busy = None, True
            self._moving = 0

    def evaluate(self, plan: Plan) -> Tally:
        """Do the jobs in shares of all workers; the model is sent once per node."""
        common, done, busy = self._wire.put(replace(plan, jobs=())), dict[int, Report](), dict[Any, Any]()
        todo: deque[tuple[list[int], int]] | None = None
        while todo is None or todo or busy:
            self._team.staff(len(plan.jobs))
            if todo is None and (self._team.members or not plan.jobs):
                pieces = policy.shares([1.0] * len(plan.jobs), _SHARES * len(self._team.members) or 1)
                todo = deque((numbers, 0) for numbers in pieces)
            at_work = {member for member, _, _ in busy.values()}
            for member in [member for member in self._team.members if member not in at_work]:
                if todo:
                    numbers, deaths = todo.popleft()
                    call = member.actor.share.remote(common, [plan.jobs[n] for n in numbers], True)
                    busy[call] = member, numbers, deaths
            for ready in self._wait(list(busy)):
                member, numbers, deaths = busy.pop(ready)
                try:
                    reports = self._wire.get(ready)
                except self._wire.lost as error:
                    assert todo is not None
                    todo.appendleft((numbers, _once_more(deaths, "an evaluation", error)))
                    self._team.discard(member)
                else:
                    done |= dict(zip(numbers, self._wire.own(reports), strict=True))
        return self._round.tally(plan, [done[n] for n in range(len(plan.jobs))])

    def close(self) -> None:
        """End the workers; the cluster stays."""
        self._team.close()

    # Hand out

    def _hand_out(self, todo: deque[tuple[Advance, int]], leads: list[_Lead]) -> None:
        """Give arms to free workers, as far as their states fit into the object store on their way."""
        free = self._free(leads)
        if todo and not free and not self._team.hired:  # of an arm that has several workers, one is taken back
            for lead in sorted(leads, key=lambda lead: -len(lead.helpers))[: len(todo)]:
                if lead.helpers:
                    lead.helpers.pop()
        while todo and free:
            task, deaths = todo[0]
            key, size = (task.arm.id, task.state.round), _bytes(task.state)
            member = next((one for one in free if one.holds == key), free[0])
            lead = _Lead(member, task, deaths, task.state.round, shipped=self._wire.now())
            if member.holds == key:
                lead.taken = _Call(member.actor.continue_to.remote(task.until))
            elif policy.fits(self._moving, size, self._room):
                lead.taken = self._moved(_Call(member.actor.take.remote(task), size))
            else:
                return
            todo.popleft()
            free.remove(member)
            leads.append(lead)

    def _free(self, leads: Sequence[_Lead]) -> list[Member]:
        """Return the workers that nobody has: neither an arm, nor a call that is under way."""
        used = {lead.member for lead in leads} | {helper for lead in leads for helper in lead.helpers}
        used |= {helper for lead in leads for call in lead.calls for helper in call.helpers}
        return [member for member in self._team.members if member not in used]

    def _give_helpers(self, todo: Sequence[Any], leads: Sequence[_Lead]) -> None:
        """Give workers that have no arm to arms that have the fewest helpers, first those of the same node."""
        if todo or not leads or not self._most_helpers:
            return
        free = self._free(leads)
        while free:
            chosen = policy.neediest([len(lead.helpers) for lead in leads], self._most_helpers)
            if chosen is None:
                return
            lead = leads[chosen]
            helper = next((one for one in free if one.node == lead.member.node), free[0])
            free.remove(helper)
            helper.holds = None
            lead.helpers.append(helper)

    def _call(self, lead: _Lead, stopping: bool, arms: int) -> None:
        """Ask a worker to go on; once it is to stop, only for its state."""
        actor, size = lead.member.actor, _bytes(lead.task.state)
        if stopping:
            if not lead.calls and policy.fits(self._moving, size, self._room):
                lead.calls.append(self._moved(_Call(actor.state.remote(), size)))
            return
        pace, every = policy.pace(len(self._team.members)), policy.interval(self._settings.every, arms, size)
        while len(lead.calls) < _AHEAD:
            due = self._wire.now() - lead.shipped >= every
            ship = due and policy.fits(self._moving, size, self._room)
            if ship:
                lead.shipped = self._wire.now()
            helpers = {helper.number: helper.actor for helper in lead.helpers}
            call = _Call(actor.advance.remote(pace, ship, helpers), size if ship else 0, tuple(lead.helpers))
            lead.calls.append(self._moved(call))

    def _moved(self, call: _Call, back: int = 1) -> _Call:
        self._moving += back * call.size
        return call

    # Take back

    def _answers(self, leads: list[_Lead], todo: deque[tuple[Advance, int]]) -> Iterator[Progress]:
        """Yield what has come."""
        taken = {lead.taken.ref: lead for lead in leads if lead.taken is not None}
        # Of each arm only the first call is waited for: a later answer, without a state, may arrive before it.
        called = {lead.calls[0].ref: (lead, lead.calls[0]) for lead in leads if lead.calls}
        for ready in self._wait([*taken, *called]):
            if ready in taken:
                self._take_over(taken[ready], leads, todo)
                continue
            lead, call = called[ready]
            if lead not in leads or call not in lead.calls:  # it has died, or is done
                continue
            lead.calls.remove(call)
            self._moved(call, -1)
            stretch = self._answer(lead, call, leads, todo)
            if stretch is not None:
                yield from self._progress(lead, stretch, leads)

    def _take_over(self, lead: _Lead, leads: list[_Lead], todo: deque[tuple[Advance, int]]) -> None:
        call, lead.taken = lead.taken, None
        if call is None:  # its worker has died, or is done
            return
        self._moved(call, -1)
        try:
            self._wire.get(call.ref)
        except self._wire.lost as error:
            self._died(lead, error, leads, todo)

    def _answer(
        self, lead: _Lead, call: _Call, leads: list[_Lead], todo: deque[tuple[Advance, int]]
    ) -> Stretch | None:  # fmt: skip
        """Return what a call has answered; None if its worker has died, or had nothing left to do."""
        try:
            return self._wire.get(call.ref)  # type: ignore[no-any-return]
        except self._wire.lost as error:
            self._died(lead, error, leads, todo)
            return None

    def _died(self, lead: _Lead, error: Exception, leads: list[_Lead], todo: deque[tuple[Advance, int]]) -> None:
        """Let another worker continue an arm; after several deaths without a new state it is an error."""
        lead.deaths = _once_more(lead.deaths, f"arm {lead.task.arm.id} before round {lead.task.until}", error)
        self._team.discard(lead.member)
        self._reassign(lead.member, leads, todo)

    def _reassign(self, member: Member, leads: list[_Lead], todo: deque[tuple[Advance, int]]) -> None:
        """Let others continue what a worker that has died was at."""
        for lead in list(leads):
            if member in lead.helpers:
                lead.helpers.remove(member)
            if lead.member is member:
                self._dismiss(lead, leads)
                todo.appendleft((lead.task, lead.deaths))

    def _dismiss(self, lead: _Lead, leads: list[_Lead]) -> None:
        """Forget an arm's worker and its calls: their answers are not needed."""
        leads.remove(lead)
        for call in (*lead.calls, *([lead.taken] if lead.taken else [])):
            self._moved(call, -1)
        lead.calls.clear()
        lead.taken = None

    def _progress(self, lead: _Lead, stretch: Stretch, leads: list[_Lead]) -> Iterator[Progress]:
        for helper in [helper for helper in lead.helpers if helper.number in stretch.lost]:
            lead.helpers.remove(helper)
            self._team.discard(helper)
        state = None if stretch.state is None else self._wire.own(stretch.state)
        lead.reached = stretch.reached
        lead.member.holds = None if stretch.error else (stretch.arm, stretch.reached)
        if state is not None:
            lead.task, lead.deaths = replace(lead.task, state=state), 0
        if lead.task.done or stretch.error:
            self._dismiss(lead, leads)
        yield Progress(stretch.arm, stretch.records, state, stretch.error)

    def _wait(self, calls: list[Any]) -> list[Any]:
        """Return the calls that are answered, after a moment at most; add workers that are ready."""
        hired = set(self._team.hired)
        everything = [*calls, *hired]
        # With very many, a few at a time: to look at all of them costs the same for one answer as for twenty.
        ready = self._wire.wait(everything, max(1, len(everything) // _AT_ONCE), 0.1)
        for call in ready:
            if call in hired:
                self._team.add(call)
        order = {call: n for n, call in enumerate(calls)}
        return sorted((call for call in ready if call not in hired), key=order.__getitem__)


def _once_more(deaths: int, what: str, error: Exception) -> int:
    """Return one more death; after several it is an error."""
    if deaths + 1 >= _TRIES:
        raise WorkerError(f"a worker died {_TRIES} times on {what}: out of memory?") from error
    return deaths + 1


def _bytes(state: State) -> int:
    """Return about how large a state is."""
    kept = (vectors for vectors in state.memory.values() if not isinstance(vectors, Blob))
    arrays = [state.w, *state.slots.values(), *(v for vectors in kept for v in vectors.values())]
    return sum(array.nbytes for array in arrays)
