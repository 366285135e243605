"""Correlation, intervals and tests, against scipy and against data whose answer is known."""

import itertools

import numpy as np
import pytest
import scipy.stats

from attnflow.correlation import ranks, spearman
from attnflow.errors import OptionError
from attnflow.evaluate.significance import bootstrap_interval, holm, sign_flip_test


@pytest.fixture
def rng():
    return np.random.default_rng(7)


# ---- Spearman's rank correlation -----------------------------------------------------------------


@pytest.mark.parametrize("values", [2, 3, 5, 1000])
def test_spearman_is_scipys_with_and_without_ties(rng, values):
    for count in (2, 3, 7, 40):
        a = rng.integers(values, size=(30, count)).astype(float)
        b = rng.integers(values, size=count).astype(float)
        found = spearman(a, b)
        for row, correlation in zip(a, found, strict=True):
            if len(set(row)) == 1 or len(set(b)) == 1:
                assert np.isnan(correlation)
            else:
                expected = scipy.stats.spearmanr(row, b).statistic
                assert correlation == pytest.approx(expected, abs=1e-12)


def test_ranks_are_scipys_along_the_last_axis(rng):
    values = rng.integers(4, size=(3, 5, 9)).astype(float)
    np.testing.assert_array_equal(ranks(values), scipy.stats.rankdata(values, axis=-1))


def test_ties_are_not_what_the_short_formula_makes_of_them():
    a, b = np.array([1.0, 1.0, 2.0, 3.0]), np.array([1.0, 2.0, 2.0, 3.0])
    gap = scipy.stats.rankdata(a) - scipy.stats.rankdata(b)
    assert spearman(a, b) != pytest.approx(1 - 6 * (gap**2).sum() / (4 * 15))
    assert spearman(a, b) == pytest.approx(5 / 6)  # ranks 1.5 1.5 3 4 and 1 2.5 2.5 4


@pytest.mark.parametrize(
    ("a", "b"),
    [([], []), ([1.0], [1.0]), ([2.0, 2.0], [1.0, 3.0]), ([1.0, np.nan, 3.0], [1.0, 2.0, 3.0])],
)
def test_a_correlation_that_is_not_defined_is_nan(a, b):
    assert np.isnan(spearman(a, b))


def test_a_perfect_correlation_is_exactly_one(rng):
    for count in range(2, 60):
        values = rng.random(count)
        assert spearman(values, values**3) == 1.0
        assert spearman(values, -values) == -1.0


# ---- Confidence intervals ------------------------------------------------------------------------


@pytest.mark.parametrize("count", [25, 100])
@pytest.mark.parametrize("skewed", [False, True])
def test_intervals_hold_the_true_mean_as_often_as_they_say(rng, count, skewed):
    columns = 1500
    if skewed:
        values, mean = 1 - rng.exponential(0.3, (count, columns)), 0.7
    else:
        values, mean = rng.normal(0.2, 0.4, (count, columns)), 0.2
    low, high = bootstrap_interval(values, samples=1000, level=0.9, seed=3)
    held = np.mean((low <= mean) & (mean <= high))
    # The bootstrap is known to fall a little short for few texts.
    assert 0.85 <= held <= 0.925


def test_intervals_are_those_of_scipys_bca(rng):
    values = rng.beta(5, 1, 60)
    ours = bootstrap_interval(values, samples=20_000, seed=1)
    theirs = scipy.stats.bootstrap(
        (values,), np.mean, n_resamples=20_000, method="BCa", rng=np.random.default_rng(2)
    ).confidence_interval
    width = theirs.high - theirs.low
    np.testing.assert_allclose(ours, [theirs.low, theirs.high], atol=0.03 * width)


def test_intervals_narrow_with_more_texts_and_widen_with_the_level(rng):
    values = rng.normal(size=400)
    few, many = (np.ptp(bootstrap_interval(values[:n])) for n in (25, 400))
    assert many < few / 2.5
    assert np.ptp(bootstrap_interval(values, level=0.99)) > many


def test_texts_without_a_value_do_not_count(rng):
    values = rng.normal(size=80)
    gaps = np.insert(values, [0, 5, 40], np.nan)
    with_gaps, without = bootstrap_interval(gaps, samples=8000), bootstrap_interval(values)
    np.testing.assert_allclose(with_gaps, without, atol=0.15 * np.ptp(without))


def test_intervals_repeat_with_the_seed_and_change_with_it(rng):
    values = rng.normal(size=30)
    np.testing.assert_array_equal(bootstrap_interval(values), bootstrap_interval(values))
    assert (bootstrap_interval(values, seed=1) != bootstrap_interval(values)).any()


def test_equal_values_have_an_interval_of_one_point():
    low, high = bootstrap_interval(np.full(10, 0.1))
    assert low == high == pytest.approx(0.1)


def test_one_value_or_none_has_no_interval():
    table = np.array([[0.5, np.nan, np.nan], [0.4, 0.3, np.nan], [0.1, np.nan, np.nan]])
    low, high = bootstrap_interval(table)
    np.testing.assert_array_equal(np.isnan([low, high]), [[False, True, True]] * 2)


def test_many_texts_are_drawn_in_blocks_with_the_same_result(rng, monkeypatch):
    values = rng.normal(size=(50, 3))
    whole = bootstrap_interval(values, samples=300), sign_flip_test(values, permutations=299)
    monkeypatch.setattr("attnflow.evaluate.significance._BLOCK", 50 * 7)
    parts = bootstrap_interval(values, samples=300), sign_flip_test(values, permutations=299)
    np.testing.assert_allclose(parts[0], whole[0], rtol=1e-12)
    np.testing.assert_array_equal(parts[1], whole[1])


# ---- The paired test -----------------------------------------------------------------------------


@pytest.mark.parametrize("count", [10, 60])
def test_p_values_are_uniform_where_there_is_no_difference(rng, count):
    # Symmetric around 0, but far from normal; of ten texts all flips are tried.
    differences = rng.laplace(size=(count, 2000)) * rng.random((count, 1))
    p = sign_flip_test(differences, permutations=1999, seed=5)
    assert scipy.stats.kstest(p, "uniform").statistic < 0.04
    assert 0.03 < (p <= 0.05).mean() < 0.07


def test_a_difference_is_found_and_more_surely_with_more_texts(rng):
    found = [
        (sign_flip_test(rng.normal(0.2, 0.5, (count, 400)), permutations=999) <= 0.05).mean()
        for count in (20, 60, 200)
    ]
    # The power of a t-test on the same data.
    expected = []
    for count in (20, 60, 200):
        centre, limit = 0.4 * count**0.5, scipy.stats.t.ppf(0.975, count - 1)
        expected.append(scipy.stats.nct.sf(limit, count - 1, centre))
    np.testing.assert_allclose(found, expected, atol=0.07)


def test_few_texts_get_the_exact_p_value(rng):
    differences = rng.normal(0.3, 1.0, 8)
    sums = [np.dot(signs, differences) for signs in itertools.product((-1, 1), repeat=8)]
    expected = np.mean(np.abs(sums) >= abs(differences.sum()) - 1e-9)
    assert sign_flip_test(differences) == expected


def test_p_values_are_scipys(rng):
    differences = rng.normal(0.1, 0.4, 40)
    theirs = scipy.stats.permutation_test(
        (differences, np.zeros(40)),
        lambda a, b: np.mean(a - b),
        permutation_type="samples",
        n_resamples=20_000,
        rng=np.random.default_rng(0),
    ).pvalue
    assert sign_flip_test(differences, permutations=20_000) == pytest.approx(theirs, abs=0.02)


def test_no_difference_at_all_has_a_p_value_of_one():
    p = sign_flip_test(np.array([[0.0, np.nan], [0.0, np.nan], [0.0, np.nan]]))
    assert p[0] == 1.0
    assert np.isnan(p[1])


def test_a_p_value_is_never_zero():
    assert sign_flip_test(np.full(100, 0.5), permutations=99) == pytest.approx(0.01)


def test_left_out_texts_do_not_change_an_exact_p_value(rng):
    differences = rng.normal(0.3, 1.0, 6)
    gaps = np.insert(differences, 3, np.nan)
    assert sign_flip_test(gaps) == sign_flip_test(differences)


# ---- Holm's correction ---------------------------------------------------------------------------


def test_holm_by_hand():
    # Sorted 0.005 0.01 0.03 0.04, times 4 3 2 1 is 0.02 0.03 0.06 0.04, and never falls.
    np.testing.assert_allclose(holm([0.01, 0.04, 0.03, 0.005]), [0.03, 0.06, 0.06, 0.02])
    np.testing.assert_allclose(holm([[0.5], [0.6]]), [[1.0], [1.0]])


def test_holm_leaves_out_tests_that_were_not_made():
    np.testing.assert_allclose(holm([0.01, np.nan, 0.04]), [0.02, np.nan, 0.04])
    assert holm([]).shape == (0,)


def test_holm_keeps_mistakes_in_a_family_rare(rng):
    families = rng.random((4000, 12))
    mistaken = np.mean([holm(family).min() <= 0.05 for family in families])
    assert 0.035 < mistaken < 0.06


# ---- Wrong input ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: bootstrap_interval([]), r"values.*\(0,\)"),
        (lambda: bootstrap_interval(0.5), r"values.*\(\)"),
        (lambda: bootstrap_interval([0.1, np.inf]), "infinite"),
        (lambda: bootstrap_interval([0.1, 0.2], samples=0), "samples.*0"),
        (
            lambda: bootstrap_interval([0.1, 0.2], level=95),
            "level.*95",
        ),
        (lambda: bootstrap_interval([0.1, 0.2], seed=-1), "seed.*-1"),
        (lambda: sign_flip_test([]), "differences"),
        (lambda: sign_flip_test([0.1], permutations=True), "permutations.*True"),
    ],
)
def test_wrong_input_is_named(call, message):
    with pytest.raises(OptionError, match=message):
        call()
