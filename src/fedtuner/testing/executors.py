"""The laws that every executor keeps: it gives the bits that ``Serial`` gives. Subclass in your tests and open yours:

class TestMine(fedtuner.testing.ExecutorLaws):
    def executor(self, round, blobs): return MyExecutor(round, blobs)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

from fedtuner import methods
from fedtuner.core.executor import Advance, Executor, Progress, Stop
from fedtuner.core.records import Record, State
from fedtuner.core.round import Round
from fedtuner.core.store import Blobs
from fedtuner.core.survey import survey
from fedtuner.errors import ClientError
from fedtuner.federations import Simulation
from fedtuner.run.executors import Serial
from fedtuner.run.store import InMemory
from fedtuner.space import Config, Float, Space
from fedtuner.testing.rounds import a_round, an_arm, bits, refused
from fedtuner.testing.toys import Points, Quadratics, quadratics
from fedtuner.tuners import FedEx

Done = dict[int, tuple[list[Record], State]]  # by arm: its records, and the state after the last of them


class ExecutorLaws:
    """Laws of an executor on small quadratics; override ``executor`` to open yours, and ``until`` for longer arms."""

    until: Sequence[int] = (5, 3, 4, 1)  # the rounds of arms 0, 1, ...

    def executor(self, round: Round, blobs: Blobs) -> Executor:
        raise NotImplementedError("override executor()")

    def round(self) -> Round:
        """Return the rounds that are computed: of a method whose clients and server remember."""
        space = Space({"lr": Float(0.05, 0.5, log=True)})
        return a_round(methods.scaffold, quadratics(), space=space, tuner=FedEx(k=3, gamma=0.5))

    def test_its_results_are_those_of_one_process_to_the_bit(self) -> None:
        with self._opened() as (round, executor):
            ours = _run(executor, self._work(round))
        _assert_same(round, ours, _serial(round, self._work(round)))

    def test_rounds_come_in_order_and_the_last_with_its_state(self) -> None:
        """An arm's records have no gap; a state that is sent is that of the round before it in the stream."""
        with self._opened() as (round, executor):
            reached: dict[int, int] = {}
            last: dict[int, Progress] = {}
            for progress in executor.advance(self._work(round), _never):
                for record in progress.records:
                    assert (record.arm, record.round) == (progress.arm, reached.get(progress.arm, 0) + 1)
                    reached[progress.arm] = record.round
                assert progress.state is None or progress.state.round == reached[progress.arm]
                last[progress.arm] = progress
        assert reached == dict(enumerate(self.until))
        assert all(progress.state is not None for progress in last.values())

    def test_work_may_be_cut_and_repeated(self) -> None:
        """The rest of the work from a state on, and the same work a second time, have the same answers."""
        with self._opened() as (round, executor):
            whole = _run(executor, self._work(round))
            again = _run(executor, self._work(round))
            half = _run(executor, [replace(one, until=(one.until + 1) // 2) for one in self._work(round)])
            rest = _run(executor, [replace(one, state=half[one.arm.id][1]) for one in self._work(round)])
        _assert_same(round, again, whole)
        for arm, (records, _) in half.items():
            more, state = rest.get(arm, ([], half[arm][1]))
            _assert_same(round, {arm: ([*records, *more], state)}, {arm: whole[arm]})

    def test_work_that_is_done_gives_nothing(self) -> None:
        """An arm that is where it should be, or that has ended, is not touched."""
        with self._opened() as (round, executor):
            done = [replace(one, until=0) for one in self._work(round)]
            ended = [replace(one, state=replace(one.state, ended="diverged")) for one in self._work(round)]
            assert _run(executor, done) == _run(executor, ended) == _run(executor, []) == {}

    def test_it_stops_after_the_rounds_under_way(self) -> None:
        """Once ``stop`` says so no arm goes on; what was done has its state, and the rest can be done later."""
        found: list[Progress] = []
        far = 100_000  # nobody gets there
        with self._opened() as (round, executor):
            for progress in executor.advance(self._work(round, far), lambda: bool(found)):
                found.append(progress)
            part = _gather(found)
            assert part
            assert all(state.round < far for _, state in part.values())
            more = [replace(one, state=part[one.arm.id][1]) for one in self._work(round) if one.arm.id in part]
            rest = _run(executor, [replace(one, until=one.state.round + 2) for one in more])
        joined = {arm: (part[arm][0] + rest[arm][0], rest[arm][1]) for arm in part}
        whole = [one for one in self._work(round) if one.arm.id in part]
        whole = [replace(one, until=rest[one.arm.id][1].round) for one in whole]
        _assert_same(round, joined, _serial(round, whole))

    def test_a_stop_before_it_begins_leaves_nothing_done(self) -> None:
        with self._opened() as (round, executor):
            assert _gather(executor.advance(self._work(round), lambda: True)) == {}

    def test_an_evaluation_is_that_of_one_process(self) -> None:
        """The same tally: its metrics, and who reported."""
        with self._opened() as (round, executor):
            work, store = self._work(round)[0], InMemory()
            plan = survey(round, work.arm, work.state, range(8), "test")
            assert repr(executor.evaluate(plan)) == repr(Serial(round, store.blobs).evaluate(plan))

    def test_an_error_in_a_clients_work_names_the_client(self) -> None:
        """It is raised here, wherever the work was done, and does not hang."""
        with self._opened(Simulation(_Raising(6), quadratics().clients)) as (round, executor):
            said = refused(ClientError, lambda: _run(executor, self._work(round)))
        assert "client 3" in said
        assert "the disk of this phone is broken" in said

    def test_where_an_error_ends_its_arm_the_others_go_on(self) -> None:
        """The arm's last progress has the error, and the state before it."""
        found: dict[int, Progress] = {}
        with self._opened(Simulation(_Picky(6), quadratics().clients), failing="end") as (round, executor):
            for progress in executor.advance(self._work(round), _never):
                found[progress.arm] = progress
        failed = {arm for arm, progress in found.items() if progress.error}
        assert failed == {2, 3}
        assert all("RuntimeError: too large a step" in found[arm].error for arm in failed)
        rounds = {arm: None if p.state is None else p.state.round for arm, p in found.items()}
        assert rounds == {arm: 0 if arm in failed else until for arm, until in enumerate(self.until)}

    @contextmanager
    def _opened(
        self, federation: Simulation | None = None, failing: str = "stop"
    ) -> Iterator[tuple[Round, Executor]]:  # fmt: skip
        round, store = self.round(), InMemory()
        round = replace(round, setup=replace(round.setup, failing=failing))
        round = replace(round, federation=federation) if federation else round
        with closing(self.executor(round, store.blobs)) as executor:
            yield round, executor

    def _work(self, round: Round, until: int | None = None) -> list[Advance]:
        arms = [an_arm(methods.scaffold, {"lr": 0.1 * (1 + id)}, id=id) for id in range(len(self.until))]
        return [Advance(arm, round.begin(arm), until or self.until[arm.id]) for arm in arms]


class _Raising(Quadratics):
    """Quadratics whose client 3 cannot be evaluated."""

    def evaluate(self, w: Any, data: Points, config: Config) -> Any:
        if len(data) and data.x[0, 0] == quadratics().clients[3].valid[0][0, 0]:
            raise RuntimeError("the disk of this phone is broken")
        return super().evaluate(w, data, config)


class _Picky(Quadratics):
    """Quadratics that cannot be trained with large steps: by arms 2 and 3, whatever their candidates."""

    def training(self, data: Points, config: Config, seed: int) -> Any:
        if float(config["lr"]) > 0.25:
            raise RuntimeError("too large a step")
        return super().training(data, config, seed)


def _never() -> bool:
    return False


def _run(executor: Executor, work: Sequence[Advance], stop: Stop = _never) -> Done:
    return _gather(executor.advance(work, stop))


def _serial(round: Round, work: Sequence[Advance]) -> Done:
    store = InMemory()
    return _run(Serial(round, store.blobs), work)


def _gather(progress: Any) -> Done:
    """Return each arm's records and its last state."""
    records: dict[int, list[Record]] = {}
    states: dict[int, State] = {}
    for one in progress:
        records.setdefault(one.arm, []).extend(one.records)
        if one.state is not None:
            states[one.arm] = one.state
    for arm, known in records.items():
        assert arm in states, f"arm {arm} has {len(known)} rounds, but no state"
        assert not known or states[arm].round == known[-1].round, f"arm {arm}: its last state is not of its last round"
    return {arm: (known, states[arm]) for arm, known in records.items()}


def _assert_same(round: Round, ours: Done, theirs: Done) -> None:
    assert ours.keys() == theirs.keys()
    for arm, (records, state) in ours.items():
        assert repr(records) == repr(theirs[arm][0]), f"the records of arm {arm} differ"
        assert bits(round, state) == bits(round, theirs[arm][1]), f"the states of arm {arm} differ"
