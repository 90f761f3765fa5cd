"""residual="auto": off until `tune` chooses its numbers, and without levels that have no distance."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import bitbayes as bb
from bitbayes.errors import DataError
from classifiers import points, relu_mlp, trained


def levels(bayes):
    """The levels at which the fit has learned what a residual needs."""
    return tuple(bayes.posterior.fitted.level_sums)


# With a residual the second moments of structure="kron" follow from the central ones, which are rounded in
# another way: by 1e-16 of the largest, times the prior variance, which is up to 2e6 here.
ROUNDED = 1e-8


def assert_the_same(found, expected, structure):
    """To the last bit, or with moments of the features to their rounding."""
    if structure == "kron":
        torch.testing.assert_close(found, expected, rtol=ROUNDED, atol=ROUNDED)
    else:
        assert torch.equal(found, expected)


@pytest.mark.parametrize("layers, structure", [("last", "full"), ("last", "kron"), ("all", "auto")])
@pytest.mark.parametrize("k", [1, 3])
def test_before_tuning_no_bit_differs_from_no_residual(k, layers, structure):
    x, y = points(k=k)
    auto, none = (
        bb.Laplace(relu_mlp(k), layers=layers, structure=structure, residual=residual).fit([(x, y)])
        for residual in ("auto", False)
    )
    assert auto.residual == "auto" and not auto.settings.has_residual
    assert levels(auto) == ("input", "head") and levels(none) == ()
    far = 50 * x
    for ask in (
        lambda bayes: bayes.predict_proba(far),
        lambda bayes: bayes(far).detach(),
        lambda bayes: bayes.logits(far).covariance,
        lambda bayes: bayes.score(far),
        lambda bayes: bayes.confidence(far),
        lambda bayes: bayes.uncertainty(far).entropy,
        lambda bayes: bayes.limit(far).confidence,
        lambda bayes: bayes.certify(far).confidence,
        lambda bayes: bayes.bound(far),
    ):
        assert_the_same(ask(auto), ask(none), structure)
    assert "residual=off" in repr(auto)


@pytest.mark.parametrize("layers", ["last", "all"])
@pytest.mark.parametrize("k", [1, 3])
def test_after_tuning_it_is_what_residual_true_is_with_the_same_numbers(k, layers):
    bayes, (x, y) = trained(k, layers=layers)
    bayes.tune([(x, y)])
    assert bayes.near_variance > 0 and bayes.beyond_variance > 0 and "residual=on" in repr(bayes)
    asked, _ = trained(k, layers=layers, residual=True)
    asked.settings = bayes.settings
    for scale in (1, 30, 1e4):
        assert torch.equal(bayes.predict_proba(scale * x), asked.predict_proba(scale * x))
    near, far = bayes.predict_proba(x).amax(1).mean(), bayes.predict_proba(1e6 * x).amax(1)
    assert near > 0.6 and float(far.max()) < 1 / max(2, k) + 0.02


@pytest.mark.parametrize("layers, structure", [("last", "full"), ("last", "kron"), ("all", "auto")])
def test_variances_of_zero_switch_it_off(layers, structure):
    bayes, (x, y) = trained(3, layers=layers, structure=structure)
    bayes.tune([(x, y)])
    bayes.near_variance = bayes.beyond_variance = 0.0
    none, _ = trained(3, layers=layers, structure=structure, residual=False)
    none.prior_variance, none.temperature = bayes.prior_variance, bayes.temperature
    assert_the_same(bayes.predict_proba(40 * x), none.predict_proba(40 * x), structure)
    assert "residual=off" in repr(bayes)


@pytest.mark.parametrize("structure", ["full", "kron"])
def test_without_it_limits_are_the_weights_own(structure):
    """A network of ReLUs, since a bounded one stops growing."""
    x, y = points()
    bayes = bb.Laplace(relu_mlp(), structure=structure).fit([(x, y)]).tune([(x, y)])
    assert bool((bayes.limit(x).confidence == 1 / 3).all()) and float(bayes.bound(x)) == 1 / 3
    bayes.near_variance = bayes.beyond_variance = 0
    options = {"structure": structure, "prior_variance": bayes.prior_variance}
    none = bb.Laplace(relu_mlp(), residual=False, **options).fit([(x, y)])
    none.temperature = bayes.temperature
    assert_the_same(bayes.limit(x).confidence, none.limit(x).confidence, structure)
    assert_the_same(bayes.bound(), none.bound(), structure)
    assert float(bayes.bound()) > 1 / 3
    assert_the_same(bayes.certify(x).confidence, none.certify(x).confidence, structure)


@pytest.mark.parametrize("objective", ["nll", "ood", "evidence"])
@pytest.mark.filterwarnings("ignore::bitbayes.errors.EdgeWarning")
def test_other_objectives_leave_temperature_and_residual_alone(objective):
    bayes, (x, y) = trained(3)
    bayes.tune([(x, y)], objective=objective)
    assert bayes.settings == bb.Settings(bayes.prior_variance)


# ---- where there is none at the input, or none at all


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(9, 4), nn.Linear(4, 3)

    def forward(self, ids):
        return self.head(self.embedding(ids).mean(1))


class Pooled(nn.Module):
    """Takes images of any size."""

    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv2d(1, 4, 3), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.conv(x).relu().mean((2, 3)))


class Clipped(nn.Module):
    """Takes numbers of any size."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 3).double()

    def forward(self, x):
        return self.head(x.clamp(-3, 3))


IDS, Y = torch.arange(120).reshape(24, 5) % 9, torch.arange(24) % 3
ENORMOUS = torch.randn(24, 4, generator=torch.Generator().manual_seed(0)).double()
ENORMOUS[::5, 1] = 1e90
IMAGES = torch.rand(24, 1, 8, 8, generator=torch.Generator().manual_seed(0))
UNMEASURED = {
    "integers": (Words, [(IDS[:12], Y[:12]), (IDS[12:], Y[12:])], ("head",)),
    "a mapping of ids": (Words, [{"ids": IDS, "labels": Y}], ("head",)),
    "sizes that vary": (Pooled, [(IMAGES[:12], Y[:12]), (IMAGES[12:, :, :6, :6], Y[12:])], ("head",)),
    # The head's input is that of the network there, clipped.
    "numbers whose powers overflow": (Clipped, [(ENORMOUS, Y)], ()),
}


@pytest.mark.parametrize("layers, structure", [("last", "kron"), ("all", "diag")])
@pytest.mark.parametrize("case", UNMEASURED)
@pytest.mark.filterwarnings("ignore::bitbayes.errors.EdgeWarning")
def test_inputs_without_a_distance_are_no_level_and_no_error(case, layers, structure):
    make, loader, expected = UNMEASURED[case]
    options = {"layers": layers, "structure": structure}
    bayes = bb.Laplace(make(), **options).fit(loader)
    assert levels(bayes) == expected
    bayes.tune(loader)
    names = (*expected, "classes") if expected else ()
    assert tuple(bayes.settings.thresholds) == names and bayes.settings.has_residual == bool(expected)
    none = bb.Laplace(bayes.model, residual=False, **options).fit(loader).tune(loader)
    if not expected:
        assert bayes.settings == none.settings
        bayes.near_variance = 2.0  # nothing is known that it could be of
    else:  # with it the temperature is another
        bayes.settings = replace(none.settings, levels={"head": 0.0, "classes": 0.0}, near_variance=2.0)
    found, plain = (torch.cat([each.predict_proba([part]) for part in loader]) for each in (bayes, none))
    torch.testing.assert_close(found, plain)
    bayes.update(loader)
    assert levels(bayes) == expected


def test_inputs_without_a_distance_are_refused_where_a_residual_was_asked_for():
    for name in ("sizes that vary", "numbers whose powers overflow"):
        make, loader, _ = UNMEASURED[name]
        with pytest.raises(DataError, match=r"residual=False|fourth powers"):
            bb.Laplace(make(), residual=True).fit(loader)
    for name in ("integers", "a mapping of ids"):  # there it is at the head
        make, loader, expected = UNMEASURED[name]
        asked = bb.Laplace(make(), residual=True).fit(loader)
        assert levels(asked) == expected and asked.near_variance == 1.0


@pytest.mark.parametrize("inputs", [torch.uint8, torch.float16, torch.float64])
def test_images_of_bytes_and_numbers_of_any_precision_have_one(inputs):
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(4, 3)

        def forward(self, x):
            return self.head(x.float() / 255)

    x = torch.randint(0, 256, (30, 4)).to(inputs)
    y = torch.arange(30) % 3
    bayes = bb.Laplace(Scaled()).fit([(x, y)])
    assert levels(bayes) == ("input",) and not bayes.settings.has_residual
    assert bayes.tune([(x, y)]).near_variance > 0 and bayes.beyond_variance > 0


def test_drawn_networks_never_see_it():
    x, y = points()
    bayes = bb.Laplace(relu_mlp(), layers="all", predictive="sampled_networks").fit([(x, y)]).tune([(x, y)])
    assert not bayes.settings.has_residual
    other = bb.Laplace(relu_mlp(), layers="all").fit([(x, y)]).tune([(x, y)])
    assert other.settings.has_residual
    draw = {"method": "sampled_networks", "generator": torch.Generator().manual_seed(0)}
    found = other.predict_proba(1e3 * x, **draw)
    other.near_variance = other.beyond_variance = 0.0
    draw["generator"].manual_seed(0)
    assert torch.equal(other.predict_proba(1e3 * x, **draw), found)


# ---- other sizes


@pytest.mark.parametrize("tuned", [False, True])
def test_an_update_with_inputs_of_another_size_raises_and_changes_nothing(tuned):
    big, small = torch.rand(24, 1, 8, 8), torch.rand(24, 1, 6, 6)
    bayes = bb.Laplace(Pooled()).fit([(big, Y)])
    if tuned:
        bayes.tune([(big, Y)])
    before = bayes.predict_proba(big), bayes.log_evidence(), bayes.settings, repr(bayes)
    for loader in ([(small, Y)], [(big, Y), (small, Y)]):
        with pytest.raises(DataError, match=r"64 .*residual=False"):
            bayes.update(loader)
        after = bayes.predict_proba(big), bayes.log_evidence(), bayes.settings, repr(bayes)
        assert torch.equal(after[0], before[0]) and after[1:] == before[1:]
    bayes.update([(big, Y)])
    assert "48 points" in repr(bayes)


def test_predictions_at_another_size_work_until_the_residual_is_in_use():
    big, small = torch.rand(24, 1, 8, 8), torch.rand(24, 1, 6, 6)
    bayes = bb.Laplace(Pooled()).fit([(big, Y)])
    assert bayes.predict_proba(small).shape == (24, 3)
    bayes.tune([(big, Y)])
    with pytest.raises(DataError, match=r"an input of 36 numbers.*64.*residual=False"):
        bayes.predict_proba(small)
    bayes.near_variance = bayes.beyond_variance = 0
    assert bayes.predict_proba(small).shape == (24, 3)


def test_an_update_moves_the_means_and_deviations_of_the_levels():
    x, y = points(dtype=torch.float64)
    bayes = bb.Laplace(relu_mlp(dtype=torch.float64)).fit([(x, y)]).tune([(x, y)])
    before = bayes.settings
    bayes.update([(5 * x + 1, y)])
    assert bayes.settings == before
    whole = bb.Laplace(bayes.model).fit([(x, y), (5 * x + 1, y)])
    whole.settings = before
    torch.testing.assert_close(bayes.predict_proba(9 * x), whole.predict_proba(9 * x), rtol=0, atol=1e-10)


@pytest.mark.parametrize("layers", ["last", "all"])
def test_files_keep_all_numbers_and_the_residual(layers, tmp_path):
    bayes, (x, y) = trained(3, layers=layers)
    bayes.tune([(x, y)])
    off = {"near_variance": 0.0, "beyond_variance": 0.0}
    for number, change in enumerate((None, {"near_variance": 0.0}, off, {"temperature": 0.125})):
        for name, value in (change or {}).items():
            setattr(bayes, name, value)
        bayes.save(tmp_path / f"{number}.safetensors")
        again = bb.Laplace.load(tmp_path / f"{number}.safetensors", bayes.model)
        assert again.settings == bayes.settings and again.residual == "auto" and repr(again) == repr(bayes)
        for scale in (1, 100):
            assert torch.equal(again.predict_proba(scale * x), bayes.predict_proba(scale * x))
        assert torch.equal(again.tune([(x, y)]).predict_proba(x), trained_again(layers).predict_proba(x))


def trained_again(layers):
    bayes, (x, y) = trained(3, layers=layers)
    return bayes.tune([(x, y)])
