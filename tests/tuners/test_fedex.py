"""FedEx: Algorithm 2's gradient and update, its step sizes and baseline; theta on the simplex whatever comes in."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtuner.core.records import Seen
from fedtuner.errors import SpecError
from fedtuner.rng import stream
from fedtuner.tuners.fedex import Belief, FedEx, exponentiate, gradient
from fedtuner.tuners.fedex_settings import METRICS, SIGNALS, STEPS
from fedtuner.tuners.theta import Theta, choose, uniform
from fedtuner.tuners.tries import further_choices, log_chances

every_step = pytest.mark.parametrize("step", STEPS)
MOVING = tuple(step for step in STEPS if step != "none")
every_moving_step = pytest.mark.parametrize("step", MOVING)


def believing(theta, baseline=0.0, **others):
    """Return a belief of the given theta and baseline."""
    theta = np.asarray(theta, dtype=float)
    return Theta(np.log(theta / theta.sum()), past=baseline, mass=1.0, **others)


def proportional(*parts):
    return pytest.approx(np.array(parts) / sum(parts), rel=1e-12)


# Goldens of the update, by hand. k = 4, so sqrt(2 log k) = S.
S = math.sqrt(2 * math.log(4))


@pytest.mark.parametrize(
    ("step", "eta"),
    [("constant", S), ("adaptive", S / 2), ("aggressive", S / 2)],
)
def test_golden_the_first_round(step, eta):
    """Three clients with |V| = 1, 3, 4, together 8; theta = 1/4 each; no past, so lambda = 0.

    gradient_0 = (1 * 0.4 + 3 * 1.2) / (1/4 * 8) = 4.0 / 2 = 2
    gradient_1 = (4 * 0.8)           / (1/4 * 8) = 3.2 / 2 = 1.6
    gradient_2 = gradient_3 = 0: nobody chose them.
    The max-norm is 2: eta = S (constant), S / sqrt(2^2) (adaptive), S / 2 (aggressive).
    """
    choices, values, weights = [0, 0, 1], [0.4, 1.2, 0.8], [1, 3, 4]
    assert gradient(uniform(4), choices, values, weights) == pytest.approx([2, 1.6, 0, 0], rel=1e-14)
    after = exponentiate(uniform(4), choices, values, weights, step)
    assert after.p == proportional(math.exp(-2 * eta), math.exp(-1.6 * eta), 1, 1)
    assert after.baseline == pytest.approx((0.4 + 3.6 + 3.2) / 8)
    assert after.log_squares == pytest.approx(math.log(4))


@pytest.mark.parametrize(
    ("step", "eta"),
    [("constant", S), ("adaptive", S / math.sqrt(4.64)), ("aggressive", S / 0.8)],
)
def test_golden_a_later_round(step, eta):
    """theta = (1/2, 1/4, 1/8, 1/8), lambda = 0.9, one earlier gradient of max-norm 2; two clients of equal |V|.

    gradient_0 = 1/2 * (1.1 - 0.9) / (1/2) =  0.2
    gradient_2 = 1/2 * (0.7 - 0.9) / (1/8) = -0.8
    The max-norm is 0.8, the sum of squares 2^2 + 0.8^2 = 4.64.
    """
    before = believing([4, 2, 1, 1], baseline=0.9, log_squares=math.log(4))
    choices, values, weights = [0, 2], [1.1, 0.7], [5, 5]
    assert gradient(before, choices, values, weights) == pytest.approx([0.2, 0, -0.8, 0], rel=1e-12)
    after = exponentiate(before, choices, values, weights, step)
    assert after.p == proportional(4 * math.exp(-0.2 * eta), 2, 1 * math.exp(0.8 * eta), 1)
    assert after.log_squares == pytest.approx(math.log(4.64))


def test_golden_one_client_of_two_candidates():
    """An aggressive step moves the chosen one's log by sqrt(2 log 2) = 1.17741: exp of it 3.24595, 1/4.24595 = 0.23552.

    Its value does not matter, only its sign: the step is divided by it.
    """
    for value in (1e-9, 0.3, 7.0):
        assert exponentiate(uniform(2), [0], [value], [10]).p == pytest.approx([0.23552, 0.76448], abs=5e-6)
        assert exponentiate(uniform(2), [0], [-value], [10]).p == pytest.approx([0.76448, 0.23552], abs=5e-6)


# The baseline: a gamma-discounted mean of the |V|-weighted means of past rounds.

ROUNDS = [  # values and |V| of two clients; their means are 0.6, 0.4, 0.8
    ([0.0, 0.8], [1, 3]),
    ([0.5, 0.3], [2, 2]),
    ([0.9, 0.2], [6, 1]),
]


@pytest.mark.parametrize(
    ("gamma", "lambdas"),
    [
        (0.0, [0, 0.6, 0.4, 0.8]),  # the latest
        (0.5, [0, 0.6, 0.7 / 1.5, 1.15 / 1.75]),  # (0.3 + 0.4) / 1.5, (0.15 + 0.2 + 0.8) / 1.75
        (1.0, [0, 0.6, 0.5, 0.6]),  # the mean of all
    ],
)
@every_step
def test_golden_the_baseline(gamma, lambdas, step):
    belief, found = uniform(3), [uniform(3).baseline]
    for values, weights in ROUNDS:
        belief = exponentiate(belief, [0, 2], values, weights, step, gamma)
        found.append(belief.baseline)
    assert found == pytest.approx(lambdas, rel=1e-12)


@given(st.floats(0, 1), st.lists(st.floats(0, 10), min_size=1, max_size=20))
def test_the_baseline_is_the_papers_formula(gamma, values):
    """lambda_t = sum_{s<t} gamma^(t-s) m_s / sum_{s<t} gamma^(t-s), and its limit where gamma is 0."""
    belief = uniform(2)
    for value in values:
        belief = exponentiate(belief, [0], [value], [1], gamma=gamma)
    powers = [gamma**age for age in range(len(values) - 1, -1, -1)]
    assert belief.baseline == pytest.approx(np.dot(powers, values) / sum(powers), rel=1e-9, abs=1e-300)


@every_step
@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0])
def test_a_round_at_the_baseline_teaches_nothing(step, gamma):
    before = exponentiate(uniform(3), [1], [0.25], [1], step, gamma)
    after = exponentiate(before, [0, 2], [0.25, 0.25], [1, 1], step, gamma)
    assert after.p == pytest.approx(before.p, rel=1e-15)
    assert after.log_squares == before.log_squares


@every_step
@pytest.mark.parametrize("gamma", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("value", [1.0, 0.9, 0.1, -0.7, 2.302585])
def test_rounding_is_not_taken_for_a_gradient(step, gamma, value):
    """Clients that all say the same, round after round: their mean differs from it in the last bit, if at all.

    An aggressive step would make a full step of any difference, so it must be seen as none.
    """
    weights = [1, 2, 3, 7, 11, 13, 0.1]
    before = belief = exponentiate(uniform(7), range(7), [value] * 7, weights, step, gamma)
    for t in range(30):
        belief = exponentiate(
            belief, choose(belief, 7, stream(0, t)), [value] * 7, weights[t % 7 :] + weights[: t % 7], step, gamma
        )
    assert belief.p == pytest.approx(before.p, rel=1e-9)


def test_a_difference_far_above_rounding_is_a_gradient():
    before = exponentiate(uniform(2), [0, 1], [1.0, 1.0], [1, 1])
    assert exponentiate(before, [0], [1.0 + 1e-9], [1]).p[0] == pytest.approx(0.23552, abs=5e-6)


@every_step
def test_values_that_cancel_are_not_a_gradient(step):
    """0.3 and 0.5 about a baseline of 0.4 leave 2.8e-17 of rounding for the one candidate that both clients chose."""
    before = believing([1, 1, 1], baseline=0.4)
    assert exponentiate(before, [1, 1], [0.3, 0.5], [1, 1], step).p == pytest.approx(before.p, rel=1e-9)


# The gradient estimate is unbiased. Client i has the loss L[i, j] with candidate j, and weighs p_i = |V_i| / sum |V|;
# the gradient of the expected loss sum_j theta_j sum_i p_i L[i, j] has the components f_j = sum_i p_i L[i, j].
# The expectation of the estimate is f_j - lambda: with lambda != 0 not the gradient itself, but the gradient less the
# same number in each component, which is a normal of the simplex. Its components' differences, all that the normalised
# update depends on, are unbiased for any lambda.

shapes = st.sampled_from([(1, 1), (1, 2), (1, 5), (2, 2), (2, 3), (3, 2), (3, 3), (4, 2)])


@st.composite
def problems(draw):
    clients, k = draw(shapes)
    positive = st.floats(0.05, 1)
    theta = np.array(draw(st.lists(positive, min_size=k, max_size=k)))
    weights = draw(st.lists(st.integers(1, 50), min_size=clients, max_size=clients))
    losses = draw(st.lists(st.lists(st.floats(-2, 2), min_size=k, max_size=k), min_size=clients, max_size=clients))
    return theta / theta.sum(), np.array(weights), np.array(losses), draw(st.sampled_from([0.0, 0.7, -1.3]))


@given(problems())
def test_the_gradient_is_unbiased(problem):
    theta, weights, losses, baseline = problem
    clients, k = losses.shape
    belief = believing(theta, baseline)
    expectation, certainty = np.zeros(k), 0.0
    for drawn in itertools.product(range(k), repeat=clients):
        chance = math.prod(theta[j] for j in drawn)
        values = [losses[i, j] for i, j in enumerate(drawn)]
        expectation += chance * gradient(belief, drawn, values, weights)
        certainty += chance
    assert certainty == pytest.approx(1)
    truth = weights @ losses / weights.sum()
    assert expectation == pytest.approx(truth - baseline, abs=1e-9)
    assert expectation - expectation[0] == pytest.approx(truth - truth[0], abs=1e-9)


@given(problems())
def test_the_gradient_is_algorithm_2(problem):
    theta, weights, losses, baseline = problem
    clients, k = losses.shape
    drawn = stream(0).integers(k, size=clients)
    values = losses[np.arange(clients), drawn]
    for j in range(k):
        numerator = sum(weights[i] * (values[i] - baseline) for i in range(clients) if drawn[i] == j)
        found = gradient(believing(theta, baseline), drawn, values, weights)[j]
        assert found == pytest.approx(numerator / (theta[j] * weights.sum()), abs=1e-9)


# Laws of the update.

rounds = st.integers(2, 6).flatmap(
    lambda k: st.tuples(
        st.lists(st.floats(0.05, 1), min_size=k, max_size=k),
        st.lists(st.tuples(st.integers(0, k - 1), st.floats(0.01, 2), st.integers(1, 50)), min_size=1, max_size=5),
    )
)


@given(rounds, st.sampled_from(MOVING), st.sampled_from([0.0, 0.4]))
def test_the_odds_move_by_eta_times_the_gradient(round_, step, baseline):
    """log (theta'_j / theta'_l) = log (theta_j / theta_l) - eta (gradient_j - gradient_l), eta as in the appendix."""
    theta, clients = round_
    belief = believing(theta, baseline, log_squares=math.log(0.09))
    g = gradient(belief, *zip(*clients, strict=True))
    norm, root = np.abs(g).max(), math.sqrt(2 * math.log(len(theta)))
    if norm > 0:
        eta = {"constant": root, "adaptive": root / math.sqrt(0.09 + norm**2), "aggressive": root / norm}[step]
        moved = exponentiate(belief, *zip(*clients, strict=True), step).log_theta - belief.log_theta
        assert moved - moved[0] == pytest.approx(-eta * (g - g[0]), rel=1e-9, abs=1e-9)


@given(rounds, st.sampled_from(STEPS), st.randoms(use_true_random=False))
def test_neither_the_order_of_clients_nor_that_of_candidates_matters(round_, step, random):
    theta, clients = round_
    after = exponentiate(believing(theta), *zip(*clients, strict=True), step).p
    shuffled = random.sample(clients, len(clients))
    assert exponentiate(believing(theta), *zip(*shuffled, strict=True), step).p == pytest.approx(after)
    order = random.sample(range(len(theta)), len(theta))
    moved = [(order.index(j), value, weight) for j, value, weight in clients]
    permuted = exponentiate(believing([theta[j] for j in order]), *zip(*moved, strict=True), step).p
    assert permuted == pytest.approx(after[order])


@given(rounds, st.sampled_from(STEPS), st.floats(1e-3, 1e3))
def test_only_the_proportions_of_weights_matter(round_, step, factor):
    theta, clients = round_
    after = exponentiate(believing(theta), *zip(*clients, strict=True), step).p
    scaled = [(j, value, weight * factor) for j, value, weight in clients]
    assert exponentiate(believing(theta), *zip(*scaled, strict=True), step).p == pytest.approx(after)
    halves = [(j, value, weight / 2) for j, value, weight in clients] * 2
    assert exponentiate(believing(theta), *zip(*halves, strict=True), step).p == pytest.approx(after)


@given(rounds, st.floats(1e-3, 1e3))
def test_an_aggressive_step_does_not_depend_on_the_unit_of_the_loss(round_, factor):
    theta, clients = round_
    after = exponentiate(believing(theta), *zip(*clients, strict=True)).p
    scaled = [(j, value * factor, weight) for j, value, weight in clients]
    assert exponentiate(believing(theta), *zip(*scaled, strict=True)).p == pytest.approx(after)


@every_moving_step
def test_the_first_step_of_the_adaptive_schedule_is_an_aggressive_one(step):
    other = exponentiate(uniform(3), [0, 1], [0.3, 0.8], [1, 2], "adaptive")
    same = exponentiate(uniform(3), [0, 1], [0.3, 0.8], [1, 2], step)
    assert (same.p == pytest.approx(other.p)) == (step != "constant")


@every_moving_step
def test_theta_finds_the_best_of_a_noiseless_table(step):
    losses, belief = [0.9, 0.5, 0.1, 0.7], uniform(4)
    for t in range(400):
        choices = choose(belief, 10, stream(0, t))
        belief = exponentiate(belief, choices, [losses[j] for j in choices], [1] * 10, step, gamma=0.5)
    assert belief.mode == 2
    assert belief.p[2] > 0.9


@given(rounds, st.floats(0, 1))
def test_without_a_step_theta_stays_and_all_else_goes_on(round_, gamma):
    """The control: what candidates do by being drawn, apart from what FedEx learns of them."""
    theta, clients = round_
    belief = believing(theta, 0.4)
    still, moved = (exponentiate(belief, *zip(*clients, strict=True), step, gamma) for step in ("none", "constant"))
    assert np.array_equal(still.log_theta, belief.log_theta)
    assert (still.past, still.mass, still.log_squares) == (moved.past, moved.mass, moved.log_squares)


def test_the_mode_of_a_theta_that_stays_uniform_is_the_arms_own_configuration():
    belief = uniform(27)
    for t in range(50):
        choices = choose(belief, 10, stream(0, t))
        belief = exponentiate(belief, choices, [0.1 * (j % 7) for j in choices], [1] * 10, "none")
    assert belief.mode == 0
    assert belief.entropy == pytest.approx(math.log(27))


# No input takes theta off the simplex.


def assert_sound(belief, k):
    theta = belief.p
    assert theta.shape == belief.log_theta.shape == (k,)
    assert np.isfinite(belief.log_theta).all()
    assert (theta > 0).all()
    assert theta.sum() == pytest.approx(1, rel=1e-12)
    assert np.exp(belief.log_theta).sum() == pytest.approx(1, rel=1e-9)
    assert math.isfinite(belief.baseline)
    assert 0 <= belief.entropy <= math.log(k) + 1e-12
    assert belief.mode in range(k)


anything = st.floats() | st.sampled_from([0.0, -0.0, 1e308, -1e308, 5e-324, math.nan, math.inf, -math.inf])
wild = st.integers(1, 6).flatmap(
    lambda k: st.tuples(
        st.just(k),
        st.lists(st.lists(st.tuples(st.integers(0, k - 1), anything, anything), max_size=4), max_size=8),
    )
)


@pytest.mark.slow
@settings(max_examples=300)
@given(wild, st.sampled_from(STEPS), st.floats(0, 1))
def test_theta_stays_on_the_simplex_whatever_comes_in(rounds, step, gamma):
    k, rounds = rounds
    belief = uniform(k)
    for clients in rounds:
        choices, values, weights = ([c[i] for c in clients] for i in range(3))
        assert np.isfinite(gradient(belief, choices, values, weights)).all()
        belief = exponentiate(belief, choices, values, weights, step, gamma)
        assert_sound(belief, k)
        assert set(choose(belief, 5, stream(0))) <= set(range(k))


@pytest.mark.slow
@every_step
@pytest.mark.parametrize("value", [1.0, -1.0, 1e308, -1e308, math.nan, 1e-300])
@pytest.mark.parametrize("gamma", [0.0, 1.0])
def test_theta_stays_on_the_simplex_for_a_thousand_rounds_of_the_same(step, value, gamma):
    """Always the same candidate, of ever smaller or ever larger probability; the signs alternate against gamma."""
    belief = uniform(3)
    for t in range(1000):
        belief = exponentiate(belief, [0], [value * (-1) ** (t * (t + 1) // 2)], [1], step, gamma)
    assert_sound(belief, 3)


@every_moving_step
def test_a_candidate_at_the_bottom_can_come_back(step):
    bottom = believing([1, 1, 1])
    for _ in range(2000):
        bottom = Theta(exponentiate(bottom, [0], [1.0], [1], "constant").log_theta)
    assert bottom.p[0] < 1e-300
    back = exponentiate(bottom, [0], [-1.0], [1], step)
    assert back.p[0] > bottom.p[0] > 0
    assert_sound(back, 3)


@every_step
@pytest.mark.parametrize(
    ("choices", "values", "weights"),
    [
        ([], [], []),
        ([0, 1], [0.5, 0.1], [0, 0]),
        ([0, 1], [0.5, 0.1], [-1, -5]),
        ([0, 1], [0.5, math.nan], [math.nan, math.inf]),
        ([2], [math.inf], [-math.inf]),
    ],
)
def test_with_nobody_to_count_nothing_changes(step, choices, values, weights):
    before = exponentiate(uniform(3), [1, 2], [0.4, 0.9], [2, 1], step, 0.5)
    assert exponentiate(before, choices, values, weights, step, 0.5) is before
    assert gradient(before, choices, values, weights).tolist() == [0, 0, 0]


@every_step
@pytest.mark.parametrize("nobody", [0, -3, math.nan, math.inf])
def test_a_client_without_weight_is_absent(step, nobody):
    """Its value is not among the round's either: the worst of it is not what NaN counts as."""
    present = exponentiate(uniform(3), [0, 1], [math.nan, 0.2], [2, 1], step)
    more = exponentiate(uniform(3), [0, 2, 1], [math.nan, 99.0, 0.2], [2, nobody, 1], step)
    assert more.log_theta.tobytes() == present.log_theta.tobytes()
    assert more.baseline == present.baseline


@every_step
def test_one_candidate_stays_certain(step):
    belief = uniform(1)
    for value in (0.3, math.nan, -1e308, 0.0):
        belief = exponentiate(belief, [0, 0], [value, 1.0], [1, 2], step, 0.5)
        assert belief.p.tolist() == [1.0]
        assert belief.entropy == 0
    assert belief.mass == 1.875  # 1 + 1/2 + 1/4 + 1/8: the past is remembered all the same


@every_step
@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize(
    ("baseline", "others", "top", "worst"),
    [
        (0.0, [0.3, 0.6], 0.6, 1.6),  # 0.6 and 1 more
        (0.0, [0.3, 2.5], 2.5, 5.0),  # twice the largest
        (4.0, [0.3, 2.5], 4.0, 8.0),
        (0.0, [-0.3, -0.6], 0.0, 1.0),
        (0.5, [-0.3, -2.6], 0.5, 3.6),  # 0.5 and the spread
        (0.0, [math.nan, math.inf], 0.0, 1.0),
    ],
)
def test_a_value_that_is_not_finite_counts_as_clearly_worse(step, bad, baseline, others, top, worst):
    """In the gradient; in the baseline it counts as the largest of the others and lambda."""
    before, values = believing([1, 2, 3], baseline), [bad, *others]
    after = exponentiate(before, [0, 1, 2], values, [1, 2, 3], step, 0.5)
    said, mean = (
        exponentiate(before, [0, 1, 2], [v if math.isfinite(v) else instead for v in values], [1, 2, 3], step, 0.5)
        for instead in (worst, top)
    )
    assert after.p.tolist() == said.p.tolist()
    assert after.baseline == mean.baseline


def test_values_too_large_to_square_count_as_huge():
    after = exponentiate(uniform(2), [0, 1], [1e308, -1e308], [1, 1], "constant")
    assert after.p.tolist() == exponentiate(uniform(2), [0, 1], [1e100, -1e100], [1, 1], "constant").p.tolist()
    assert after.mode == 1


def test_a_round_leaves_the_belief_before_it_as_it_was():
    before = exponentiate(uniform(3), [0], [0.5], [1])
    kept = before.log_theta.copy()
    exponentiate(before, [0, 1, 2], [0.1, 0.9, 0.4], [1, 2, 3])
    assert before.log_theta.tolist() == kept.tolist()


# Drawing candidates.


def test_uniform():
    for k in (1, 2, 3, 27):
        assert uniform(k).p.tolist() == [1 / k] * k
        assert uniform(k).baseline == 0
        assert uniform(k).entropy == pytest.approx(math.log(k))
        assert uniform(k).mode == 0


@pytest.mark.parametrize("theta", [[0.5, 0.3, 0.15, 0.05], [0.05, 0.9, 0.05], [1.0], [0.2] * 5])
def test_candidates_are_drawn_as_often_as_theta_says(theta):
    n = 20_000
    drawn = choose(believing(theta), n, stream(0, "choose"))
    counts = np.bincount(drawn, minlength=len(theta))
    for j, p in enumerate(theta):
        assert abs(counts[j] - n * p) <= 5 * math.sqrt(n * p * (1 - p))


def test_a_candidate_of_no_probability_is_not_drawn():
    belief = Theta(np.array([-700.0, 0.0, -700.0, -700.0]))
    assert set(choose(belief, 1000, stream(0))) == {1}


def test_each_candidate_owns_the_half_open_part_of_the_unit_interval():
    class Edges:
        def random(self, n):
            return np.array([0.0, 0.25, np.nextafter(0.75, 0), 0.75, np.nextafter(1, 0)])[:n]

    assert choose(believing([1, 2, 1]), 5, Edges()) == [0, 1, 1, 2, 2]


def test_draws_depend_on_the_stream_and_not_on_the_number_of_others():
    belief = believing([1, 2, 3])
    assert choose(belief, 5, stream(3)) == choose(belief, 9, stream(3))[:5]
    assert choose(belief, 0, stream(3)) == []
    assert all(type(j) is int for j in choose(belief, 5, stream(3)))


def test_below_the_cutoff_the_mode_is_used():
    belief = believing([1, 6, 2])
    drawn = choose(belief, 50, stream(0))
    assert len(set(drawn)) > 1
    assert choose(belief, 50, stream(0), cutoff=belief.entropy) == drawn  # not below
    assert choose(belief, 50, stream(0), cutoff=belief.entropy + 1e-9) == [1] * 50
    rng, other = stream(0), stream(0)
    choose(belief, 5, rng, cutoff=10.0)
    choose(belief, 5, other)
    assert rng.random() == other.random()  # the place in the stream does not depend on it


@pytest.mark.parametrize(
    ("theta", "entropy"),
    [
        ([1.0], 0.0),
        ([0.5, 0.5], math.log(2)),
        ([0.5, 0.25, 0.25], 1.5 * math.log(2)),  # 1/2 of one bit and twice 1/4 of two
        ([1.0, 1e-320], 0.0),
    ],
)
def test_entropy(theta, entropy):
    assert believing(theta).entropy == pytest.approx(entropy, abs=1e-12)


def test_the_mode_is_the_first_of_equals():
    assert believing([1, 3, 3, 2]).mode == 1


# Keeping a belief.


@given(wild, st.sampled_from(STEPS), st.floats(0, 1))
def test_a_kept_belief_is_the_same_to_the_bit(rounds, step, gamma):
    k, rounds = rounds
    tuner = FedEx(k=k, step=step)
    kept = belief = begun = Belief(({},) * k, gamma, uniform(k))
    for clients in rounds:
        seen = [Seen((j,), (value,), weight) for j, value, weight in clients]
        arrays = {name: np.frombuffer(a.tobytes(), a.dtype) for name, a in tuner.pack(kept).items()}
        kept, belief = tuner.update(tuner.unpack(begun, arrays), seen), tuner.update(belief, seen)
    mine, theirs = ({name: a.tobytes() for name, a in tuner.pack(one).items()} for one in (kept, belief))
    assert mine == theirs
    assert all(a.dtype == np.float64 for a in tuner.pack(belief).values())


# Bad input.


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"k": 0}, "fedex.k = 0, but must be a whole number >= 1"),
        ({"k": -3}, "fedex.k = -3"),
        ({"k": 2.5}, "fedex.k = 2.5"),
        ({"k": "27"}, "fedex.k = '27'"),
        ({"k": True}, "fedex.k = True"),
        ({"k": None}, "fedex.k = None"),
        ({"eps": -0.1}, "fedex.eps = -0.1, but must be >= 0"),
        ({"eps": math.nan}, "fedex.eps = nan"),
        ({"eps": "0.1"}, "fedex.eps = '0.1'"),
        ({"eps": None}, "fedex.eps = None"),
        ({"gamma": -0.1}, "fedex.gamma = -0.1, but must be in [0, 1] (or left out: drawn per arm)"),
        ({"gamma": 1.1}, "fedex.gamma = 1.1"),
        ({"gamma": math.nan}, "fedex.gamma = nan"),
        ({"gamma": "0.5"}, "fedex.gamma = '0.5'"),
        ({"cutoff": -1}, "fedex.cutoff = -1, but must be >= 0"),
        ({"cutoff": math.nan}, "fedex.cutoff = nan"),
        ({"cutoff": "none"}, "fedex.cutoff = 'none'"),
        ({"step": "agressive"}, "did you mean 'aggressive'?"),
        ({"step": 0.1}, "fedex.step = 0.1, but must be one of ('aggressive', 'adaptive', 'constant', 'none')"),
        ({"metric": "accuracy"}, "fedex.metric = 'accuracy', but must be one of ('error', 'loss')"),
        ({"metric": None}, "fedex.metric = None"),
        ({"signal": "improvment"}, "did you mean 'improvement'?"),
    ],
    ids=str,
)
def test_bad_settings_are_refused(setting, said):
    with pytest.raises(SpecError) as caught:
        FedEx(**setting)
    assert said in str(caught.value)


def test_good_settings_are_taken():
    assert FedEx() == FedEx(27, 0.1, "aggressive", None, "error", 0.0, "absolute")  # the paper's, where it says
    for step, metric, signal in itertools.product(STEPS, METRICS, SIGNALS):
        FedEx(k=1, eps=0, step=step, gamma=0, metric=metric, cutoff=0, signal=signal)
    for eps, gamma, cutoff in itertools.product((0, 0.1, 1, 3.0), (None, 0, 0.5, 1), (0, 2.5)):
        FedEx(eps=eps, gamma=gamma, cutoff=cutoff)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: uniform(0), "k = 0, but must be >= 1"),
        (lambda: exponentiate(uniform(2), [0], [1.0], [1], "adaptve"), "did you mean 'adaptive'?"),
        (lambda: exponentiate(uniform(2), [0], [1.0], [1], None), "step = None, but must be one of"),
        (lambda: exponentiate(uniform(2), [0], [1.0], [1], gamma=1.5), "gamma = 1.5, but must be in [0, 1]"),
        (lambda: exponentiate(uniform(2), [0], [1.0], [1], gamma=-0.1), "gamma = -0.1"),
        (lambda: exponentiate(uniform(2), [0], [1.0], [1], gamma=math.nan), "gamma = nan"),
        (lambda: exponentiate(uniform(2), [0, 1], [1.0], [1]), "2 choices, 1 values and 1 weights"),
        (lambda: exponentiate(uniform(2), [0], [1.0], [1, 2]), "1 choices, 1 values and 2 weights"),
        (lambda: exponentiate(uniform(2), [2], [1.0], [1]), "choices [2] are not all in 0..1"),
        (lambda: gradient(uniform(2), [-1], [1.0], [1]), "choices [-1] are not all in 0..1"),
    ],
)
def test_bad_input_is_refused(call, said):
    with pytest.raises(SpecError) as caught:
        call()
    assert said in str(caught.value)


# Several tries


def every_draw(theta, tries):
    """Yield each list of candidates that a client may try, and its probability: theta for the first, uniform others."""
    k = len(theta)
    for first in range(k):
        others = list(itertools.combinations([j for j in range(k) if j != first], tries - 1))
        for chosen in others:
            yield [first, *chosen], theta[first] / len(others)


@pytest.mark.parametrize("tries", [1, 2, 3, 4])
@pytest.mark.parametrize("baseline", [0.0, 0.4])
def test_the_gradient_is_unbiased_for_any_number_of_tries(tries, baseline):
    """Its mean over all draws is the true gradient v_j - lambda; with all tries it is that for every draw."""
    theta, values = np.array([0.1, 0.2, 0.3, 0.4]), np.array([0.9, 0.2, 0.5, 0.7])
    belief = believing(theta, baseline)
    mean = np.zeros(4)
    for tried, chance in every_draw(theta, tries):
        found = gradient(belief, [tried], [values[tried]], [3])
        mean += chance * found
        if tries == 4:
            assert found == pytest.approx(values - baseline, rel=1e-12)
    assert mean == pytest.approx(values - baseline, rel=1e-9)


@pytest.mark.parametrize("tries", [1, 2, 3, 4])
def test_chances_are_those_of_the_draws(tries):
    theta = np.array([0.1, 0.2, 0.3, 0.4])
    chances = np.zeros(4)
    for tried, chance in every_draw(theta, tries):
        chances[tried] += chance
    assert np.exp(log_chances(believing(theta), tries)) == pytest.approx(chances, rel=1e-12)
    assert chances.sum() == pytest.approx(tries)


def test_more_tries_make_the_gradient_less_noisy():
    """The variance over draws of the entry of an improbable candidate falls from (1-p)/p to 0."""
    theta, values = np.array([0.02, 0.38, 0.6]), np.array([0.5, 0.6, 0.4])
    spread = []
    for tries in (1, 2, 3):
        drawn = [(gradient(believing(theta), [t], [values[t]], [1])[0], c) for t, c in every_draw(theta, tries)]
        spread.append(sum(c * (g - values[0]) ** 2 for g, c in drawn))
    assert spread[0] == pytest.approx(0.25 * (1 / 0.02 - 1))
    assert spread[0] > 10 * spread[1] > 0
    assert spread[2] == pytest.approx(0.0, abs=1e-20)


@every_step
def test_one_try_in_a_list_is_one_try_to_the_bit(step):
    belief, choices, values, weights = (
        believing([0.2, 0.3, 0.5], 0.3),
        [0, 2, 2, 1],
        [0.1, 0.9, 0.4, math.inf],
        [1, 2, 3, 4],
    )
    flat = exponentiate(belief, choices, values, weights, step, 0.5)
    listed = exponentiate(belief, [[j] for j in choices], [[v] for v in values], weights, step, 0.5)
    assert flat.log_theta.tobytes() == listed.log_theta.tobytes()
    assert (flat.past, flat.mass, flat.log_squares) == (listed.past, listed.mass, listed.log_squares)


def test_a_full_round_by_hand():
    """Two clients of |V| 1 and 3 try both of two candidates: 0.2, 0.6 and 0.4, 0.0. No baseline, constant steps.

    gradient = (1/4 0.2 + 3/4 0.4, 1/4 0.6 + 3/4 0.0) = (0.35, 0.15); eta = sqrt(2 log 2). The first of each client is
    the one that its model used: the baseline becomes 1/4 0.2 + 3/4 0.0 = 0.05.
    """
    after = exponentiate(uniform(2), [[0, 1], [1, 0]], [[0.2, 0.6], [0.0, 0.4]], [1, 3], "constant")
    eta = math.sqrt(2 * math.log(2))
    assert after.p == proportional(math.exp(-eta * 0.35), math.exp(-eta * 0.15))
    assert after.baseline == pytest.approx(0.05)


@pytest.mark.parametrize("tries", [1, 2, 4, 5])
def test_further_choices_are_distinct_and_equally_likely(tries):
    counts = np.zeros(5)
    for n in range(400):
        (others,) = further_choices([2], 5, tries, stream(0, n))
        assert len({2, *others}) == tries
        counts[others] += 1
    expected = np.array([1, 1, 0, 1, 1]) * 400 * (tries - 1) / 4
    assert np.abs(counts - expected).max() <= 4 * math.sqrt(100)


@pytest.mark.parametrize("tries", [0, 28, -1, True, 1.0, None, "some", "2"])
def test_bad_tries_are_refused(tries):
    with pytest.raises(SpecError, match=r"fedex\.tries = .*, but must be"):
        FedEx(tries=tries)
    assert FedEx(k=9, tries="all").tried == FedEx(k=9, tries=9).tried == 9
    assert FedEx(k=1, tries="all").tried == 1
