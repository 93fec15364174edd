"""Settings from a budget: what ``tune(problem, budget=500)`` means.

``auto`` fills in what is not given: the schedule (a few arms, a duel with the default, a long run), what the arms
differ in (step sizes and amounts of local work, around the defaults), and how the server steps (FedExP, cooled over the
last half). docs/choosing.md says why, with numbers.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedtuner import checks, samplers
from fedtuner.core.federation import Federation
from fedtuner.core.method import Method
from fedtuner.core.model import Hyper
from fedtuner.core.setup import CODE_OF_THEIR_OWN
from fedtuner.errors import FedtunerWarning, SpecError, brief, suggest
from fedtuner.schedules import Duel
from fedtuner.space import Choice, Config, Domain, Float, Int, PowerOfTwo, Space, Value, When, fixed
from fedtuner.tuners import none

VARIED = ("step", "work", "batch")  # the roles that arms differ in
DECADES = 100  # on one side of a step size: more than there are
COOLING = 0.5  # the last part of the run, in which the server's step falls
# What an app's own hyperparameters are, by parts of their names.
_GUESSES = {
    "regulariser": r"decay|dropout|^wd$|^mu$|proximal|lambda|^l[12]$|penalty|regular",
    "momentum": r"momentum|beta",
    "batch": r"batch",
    "work": r"epoch|steps|iterations",
    "step": r"^lr|lr$|_lr_|learning.?rate|^rate$|^eta$|step.?size",
}
_ROLES = {
    "step": "a step size", "work": "an amount of local work", "batch": "a batch size", "momentum": "a momentum",
    "regulariser": "a regulariser", "other": "not searched by default", "": "of unknown role",
}  # fmt: skip


@dataclass(frozen=True)
class Auto:
    """How a budget of communication rounds is spent; ``prepare`` applies it to what else is given."""

    budget: int
    arms: int | None = None  # None: as many as the budget can compare
    vary: tuple[str, ...] | None = None  # the hyperparameters that arms differ in, such as lr, server.lr; None: by role
    max_work: float | None = None  # a client's passes over its data in a round, as a multiple of the default's
    decades: float = 1.5  # on both sides of a default step size, how far arms go

    def __init__(
        self, budget: int,
        *, arms: int | None = None, vary: Sequence[str] | None = None, max_work: float | None = None,
        decades: float = 1.5,
    ) -> None:  # fmt: skip
        if max_work is not None:
            max_work = checks.number("max_work", max_work, 1)
        if vary is not None and not _are_names(vary):
            raise SpecError(f"vary = {brief(vary)}, but must be names of hyperparameters, such as ['lr']")
        schedule = Duel(budget, arms)
        checks.settle(
            self, budget=schedule.budget, arms=arms, vary=None if vary is None else tuple(vary), max_work=max_work,
            decades=checks.number("decades", decades, 0, DECADES),
        )  # fmt: skip

    @property
    def schedule(self) -> Duel:
        """The schedule of the budget."""
        return Duel(self.budget, self.arms)

    def __call__(self, federation: Federation, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings of a study: what is given, and what the budget says about the rest."""
        settings = dict(given)
        model, method = federation.model, settings["method"]
        own = model.own_training
        known = {**({} if own else method.client), **model.hyperparameters}
        asked = settings.get("space")
        if own and asked is None and not known:
            raise SpecError(CODE_OF_THEIR_OWN)
        roles = roles_of(known, asked.client if asked else {})
        searches = asked is not None and (asked.searches or asked == Space())
        domains = _domains(known, asked.client if asked else {}, searches)
        of_server = _domains(method.server, asked.server if asked else {}, searches)
        include = tuple(settings.pop("include", ()))
        unknown = [name for name, domain in domains.items() if name not in known and not fixed(domain)]
        if own and unknown and not include and "sampler" not in settings:
            named = "{" + ", ".join(f"{name!r}: ..." for name in unknown) + "}"
            raise SpecError(
                f"what these clients have today is not known: give include=[{{'client': {named}}}], or include=[{{}}] "
                "if their code has defaults of its own"
            )
        include = include or ({},)
        today = samplers.both_sides(include)[0]
        centre = {**{name: hyper.default for name, hyper in known.items()}, **today["client"]}
        space = self._space(domains, of_server, roles, centre)
        space = Space(space.client, space.server, asked.constraints if asked else ())
        if asked is not None and self.vary is None:
            self._warn(asked, space, roles)
        if not own:
            _warn_of_adam(asked, today["client"], space)
        # All arms have what the default has, unless they differ in it. Code of one's own reads declared defaults, too.
        kept = today["client"] if not own else {name: centre[name] for name in domains if name in centre}
        space = Space(_fixed(kept, space.client), _fixed(today["server"], space.server), space.constraints)
        schedule = self._with_step(roles, domains, known, centre)
        varied = [name for name, domain in space.client.items() if not fixed(domain)]
        if self.arms is not None and self.arms < len(include):
            raise SpecError(f"include has {len(include)} configurations, but arms = {self.arms}: raise arms")
        assert schedule.arms is not None
        arms = max(schedule.arms if space.searches else 1, len(include))
        if arms > schedule.arms and (least := Duel.least(arms)) > self.budget:
            raise SpecError(
                f"budget = {self.budget} cannot give the {arms} configurations of include a round each: raise budget "
                f"to {least} or more, or include fewer"
            )
        schedule = replace(schedule, arms=arms)
        around = {name: centre[name] for name in varied if roles[name] == "step" and name in centre}
        rest = samplers.Stratified(max(1, arms - len(include)), around, self.decades)
        chosen = {*today["server"], *(asked.server if asked else ())}
        settings["method"], settings["space"] = _extrapolating(method, chosen), space
        if settings["method"] != method:
            optimiser, lr = (method.server[name].default for name in ("optimiser", "lr"))
            schedule = replace(schedule, default_optimiser=str(optimiser), default_lr=float(lr))
        settings.setdefault("schedule", schedule)
        settings.setdefault("tuner", none)
        if "sampler" not in settings or given.get("include"):
            settings["sampler"] = samplers.Include(include, settings.get("sampler", rest))
        settings.setdefault("cooling", COOLING)
        settings.setdefault("weights", "shared")
        # A device that is drawn trains for one arm after the other, so a large fleet has other clients for each.
        settings.setdefault("cohorts", "shared" if federation.executor is None else "auto")
        return settings

    def _with_step(
        self, roles: Mapping[str, str], domains: Mapping[str, Domain], known: Mapping[str, Hyper],
        centre: Mapping[str, Value],
    ) -> Duel:  # fmt: skip
        """Return the schedule that knows which hyperparameter is the step: a real number, searched rather than not."""

        def is_real(name: str) -> bool:
            given = domains.get(name, centre.get(name))
            if name in known and (not isinstance(given, Domain) or fixed(given)):  # 2 may be as real as 2.0
                return not known[name].whole
            return _is_real(given)

        real = [n for n, role in roles.items() if role == "step" and is_real(n)]
        step = next((n for n in real if n in domains and not fixed(domains[n])), real[0] if real else "")
        least = known[step].low if step in known else 0.0
        return replace(self.schedule, step=step, least_step=max(0.0, least))

    def _space(
        self,
        domains: Mapping[str, Domain],
        of_server: Mapping[str, Domain],
        roles: Mapping[str, str],
        centre: Mapping[str, Value],
    ) -> Space:
        """Return what arms differ in, and what is fixed."""
        known = [*domains, *(f"server.{name}" for name in of_server)]
        for name in self.vary or ():
            if name not in known:
                raise SpecError(f"vary has {brief(name)}, but there is no range of it{suggest(name, known)}")
        client: dict[str, Any] = {}
        for name, domain in domains.items():
            varies = name in self.vary if self.vary is not None else roles[name] in ("", *VARIED)
            if fixed(domain):
                client[name] = domain
            elif varies:
                bounded = self.max_work is not None and roles[name] == "work"
                client[name] = self._bounded(name, domain, centre.get(name)) if bounded else domain
        server = {n: d for n, d in of_server.items() if fixed(d) or f"server.{n}" in (self.vary or ())}
        return Space(client, server)

    def _warn(self, asked: Space, space: Space, roles: Mapping[str, str]) -> None:
        """Say which ranges of a space are not searched, and how they would be."""
        left = [name for name, domain in asked.client.items() if not fixed(domain) and name not in space.client]
        of_server = [f"server.{name}" for name, domain in asked.server.items() if not fixed(domain)]
        if left or of_server:
            named = [f"{name} ({_ROLES[roles[name]]})" for name in left] + of_server
            searched = [name for name, domain in space.client.items() if not fixed(domain)]
            warnings.warn(
                f"not searched, though the space has ranges of them: {', '.join(named)}; they keep their defaults. "
                f"recipe=auto({self.budget}, vary={[*searched, *left, *of_server]}), or vary under [auto], searches "
                "them, too; one value in place of a range sets them",
                FedtunerWarning,
                stacklevel=6,
            )

    def _bounded(self, name: str, domain: Domain, default: Value | None) -> Domain:
        """Return the range of an amount of work that stays within ``max_work`` times the default's."""
        if isinstance(domain, When):
            return replace(domain, inner=self._bounded(name, domain.inner, default))
        assert self.max_work is not None
        if not checks.is_number(default):
            raise SpecError(
                f"max_work = {self.max_work:g} times the {name} that clients have today, but that is not known: "
                f"name it in include=[{{'client': {{{name!r}: ...}}}}]"
            )
        assert isinstance(default, (int, float))
        most = self.max_work * default
        if isinstance(domain, Choice):
            few = [v for v in domain.values if not checks.is_number(v) or v <= most]  # type: ignore[operator]
            return Choice(few or [default])
        if isinstance(domain, (Int, PowerOfTwo)):
            return replace(domain, high=max(domain.low, min(domain.high, _floor(most, domain))))
        if isinstance(domain, Float):
            return replace(domain, high=max(domain.low, min(domain.high, most)))
        return domain


auto = Auto


def _warn_of_adam(asked: Space | None, today: Config, space: Space) -> None:
    """Say so where clients train by Adam, and the rate that the arms are drawn around is that of SGD."""
    optimiser = today.get("optimiser", asked.client.get("optimiser") if asked else None)
    rate = space.client.get("lr")
    if optimiser in ("adam", Choice(["adam"])) and "lr" not in today and rate is not None and not fixed(rate):
        warnings.warn(
            "client.optimiser = 'adam', but the lr that arms are drawn around, and that the default has, is SGD's: "
            "give yours, include=[{'client': {'lr': 0.001}}]",
            FedtunerWarning,
            stacklevel=6,
        )


def _is_real(given: Domain | Value | None) -> bool:
    """Return whether a hyperparameter of this range, or of this value, is a real number rather than a whole one."""
    if isinstance(given, When):
        return _is_real(given.inner)
    values = given.values if isinstance(given, Choice) else (given,)
    return isinstance(given, Float) or (all(map(checks.is_number, values)) and any(type(v) is float for v in values))


def _floor(most: float, domain: Int | PowerOfTwo) -> int:
    whole = max(1, int(most))
    return 1 << (whole.bit_length() - 1) if isinstance(domain, PowerOfTwo) else whole


def _are_names(given: Any) -> bool:
    return isinstance(given, Sequence) and not isinstance(given, str) and all(isinstance(name, str) for name in given)


def roles_of(known: Mapping[str, Hyper], asked: Mapping[str, Domain]) -> dict[str, str]:
    """Return the roles of client hyperparameters: declared ones, and for an app's own those that names suggest.

    A declared one without a role is left at its default; one that nothing is known of ("") is varied.
    """
    roles = {name: hyper.role or "other" for name, hyper in known.items()}
    return roles | {name: guess(name) for name in asked if name not in known}


def guess(name: str) -> str:
    """Return the role that a name suggests; empty if none.

    >>> guess("learning-rate"), guess("local_epochs"), guess("batch_size"), guess("weight-decay"), guess("hidden")
    ('step', 'work', 'batch', 'regulariser', '')
    """
    return next((role for role, parts in _GUESSES.items() if re.search(parts, name.lower())), "")


def _domains(known: Mapping[str, Hyper], asked: Mapping[str, Domain], searches: bool) -> dict[str, Domain]:
    """Return the ranges and values that are asked for; where no range is, after those that are declared."""
    usual = {} if searches else {name: hyper.domain for name, hyper in known.items() if hyper.domain is not None}
    return {**usual, **asked}


def differing(described: Mapping[str, Any]) -> str:
    """Return the client hyperparameters that arms differ in, in words; with the roles of those that were guessed."""
    sides = (("", "client"), ("server.", "server"))
    varied = [
        (name, prefix) for prefix, side in sides for name, domain in described[side].items()
        if isinstance(domain, (Mapping, list))
    ]  # fmt: skip
    declared = described["defaults"]["client"]
    return ", ".join(
        f"{prefix}{name}" + ("" if prefix or name in declared else f" (by its name {_ROLES[guess(name)]})")
        for name, prefix in varied
    )


def _fixed(values: Mapping[str, Value], domains: Mapping[str, Domain]) -> dict[str, Domain]:
    """Return domains, and before them those of the values that have none."""
    return {**{name: Choice([value]) for name, value in values.items()}, **domains}


def _extrapolating(method: Method, chosen: set[str]) -> Method:
    """Return the method with FedExP as its server's optimiser, unless it has its own step or another was chosen."""
    plain = method.mean_step and method.server["optimiser"].default == "sgd"
    if not plain or {"optimiser", "lr", "momentum"} & (method.given | chosen) or "fedexp" not in method.optimisers:
        return method
    return method.stepping_by("fedexp")
