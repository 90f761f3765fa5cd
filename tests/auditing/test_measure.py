import functools
import json
import math
import re
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import bitbayes as bb
from bitbayes import Laplace, TemperatureScaling, metrics
from bitbayes.auditing import render_page, terminal_table
from bitbayes.auditing.conditions import check_conditions, parse_condition
from bitbayes.auditing.costs import Duration
from bitbayes.auditing.findings import AUDITED_METHODS, COMPARED_ON_TEST, KEPT_SHARES, Audit, Cost
from bitbayes.auditing.measure import audit
from bitbayes.errors import ArgumentError, BitbayesError, DataError, EdgeWarning, UnusedDataWarning


@pytest.fixture(autouse=True)
def _short_timing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bitbayes.auditing.costs.ENOUGH_SECONDS", 0.01)


CENTRES = torch.tensor([[-2.0, 0.0], [2.0, 0.0], [0.0, 3.0]])


def blobs(n: int, k: int, seed: int) -> tuple[Tensor, Tensor]:
    """n points around k centres, near enough to each other that a classifier makes mistakes."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % k
    return CENTRES[y] + 1.5 * torch.randn(n, 2, generator=generator), y


def trained(k: int, outputs: int) -> nn.Module:
    x, y = blobs(120, k, 0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, outputs))
    optimizer = torch.optim.Adam(model.parameters(), 0.05)
    for _ in range(60):
        optimizer.zero_grad()
        logits = model(x)
        if outputs == 1:
            nn.functional.binary_cross_entropy_with_logits(logits[:, 0], y.float()).backward()
        else:
            nn.functional.cross_entropy(logits, y).backward()
        optimizer.step()
    return model


def loaders(
    k: int, *, dtype: torch.dtype = torch.float32, shuffle: bool = False
) -> dict[str, DataLoader[tuple[Tensor, ...]]]:
    parts = {"train": blobs(120, k, 0), "validation": blobs(90, k, 1), "test": blobs(150, k, 2)}
    return {
        name: DataLoader(TensorDataset(x.to(dtype), y), 40, shuffle=shuffle) for name, (x, y) in parts.items()
    }


def run(model: nn.Module, data: dict[str, Any], *args: Any, **options: Any) -> Audit:
    return audit(model, data["train"], data["validation"], data["test"], *args, **options)


@functools.cache
def usual() -> Audit:
    """The audit of three classes without anything else."""
    return run(trained(3, 3), loaders(3))


@pytest.mark.parametrize("k, outputs", [(3, 3), (2, 2), (2, 1)])
def test_every_score_is_what_the_parts_give_by_hand(k: int, outputs: int) -> None:
    # In float64, where no two confidences are equal by rounding: AUROC and FPR95 would count those.
    model, data = trained(k, outputs).double(), loaders(k, dtype=torch.float64)
    ring = 10 * torch.randn(70, 2, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    found = run(model, data, {"ring": ring})

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EdgeWarning)
        bayes = Laplace(model).fit(data["train"]).tune(data["validation"])
        # Of the same sums, and without a residual: "ood" chooses none.
        paper = Laplace(model).fit(data["train"]).tune(data["validation"], objective="ood")
        alone = Laplace(model, residual=False).fit(data["train"]).tune(data["validation"], objective="ood")
    assert not paper.settings.has_residual and paper.prior_variance == alone.prior_variance
    scaled = TemperatureScaling(model).fit(data["validation"])
    assert found.chosen == {
        "temperature": {"temperature": scaled.temperature},
        "bitbayes": {
            "prior_variance": bayes.prior_variance,
            "temperature": bayes.temperature,
            "near_variance": bayes.near_variance,
            "beyond_variance": bayes.beyond_variance,
        },
        "paper": {"prior_variance": paper.prior_variance},
    }
    assert found.sizes == {"train": 120, "validation": 90, "test": 150}
    assert found.classes == k
    x, y = blobs(150, k, 2)
    x = x.double()

    def plain(inputs: Tensor) -> Tensor:
        with torch.no_grad():
            logits = model(inputs)
        if outputs == 1:
            return torch.cat([1 - logits.sigmoid(), logits.sigmoid()], 1)
        return logits.softmax(1)

    # Without the sums of a residual, second moments of the features are rounded in another way: by 1e-16 of
    # the largest, times the prior variance, which may be 1e10.
    torch.testing.assert_close(paper.predict_proba(x), alone.predict_proba(x), rtol=0, atol=1e-6)
    ring_scores = found.outliers[0].scores
    assert found.methods == AUDITED_METHODS
    detail = found.details["paper"]
    assert detail.test.ece == pytest.approx(metrics.ece(paper.predict_proba(x), y), rel=1e-9, abs=1e-12)
    expected = metrics.auroc(paper.score(x), paper.score(ring))
    assert detail.outliers["ring"].auroc == pytest.approx(expected, rel=1e-9)
    assert set(detail.outliers) == {each.name for each in found.outliers}
    x_val, y_val = blobs(90, k, 1)
    x_val = x_val.double()
    assert (found.base, found.ours) == ("plain", "bitbayes")
    assert found.errors == {
        "validation": int((plain(x_val).argmax(1) != y_val).sum()),
        "test": int((plain(x).argmax(1) != y).sum()),
    }

    def energy(inputs: Tensor) -> Tensor:
        with torch.no_grad():
            logits = model(inputs)
        return (torch.cat([-logits / 2, logits / 2], 1) if outputs == 1 else logits).logsumexp(1)

    predictions = plain, scaled.predict_proba, plain, bayes.predict_proba
    ranks = {"bitbayes": bayes.score, "energy": energy}
    for method, predict in zip(AUDITED_METHODS, predictions, strict=True):
        inside, outside, scores = predict(x), predict(ring), found.test[method]
        on_validation = metrics.nll(predict(x_val), y_val)
        assert found.validation_nll[method] == pytest.approx(on_validation, rel=1e-9)
        assert set(scores.against) == set(found.outliers[0].scores[method].against)
        assert set(scores.against) == set(AUDITED_METHODS) - {method}
        correct, parts = inside.argmax(1) == y, metrics.brier_decomposition(inside, y)
        assert scores.augrc == pytest.approx(metrics.augrc(inside.amax(1), correct), rel=1e-9)
        assert scores.aurc == pytest.approx(metrics.aurc(inside.amax(1), correct), rel=1e-9)
        assert scores.brier_calibration == pytest.approx(parts.calibration, rel=1e-9)
        assert scores.brier_refinement == pytest.approx(parts.refinement, rel=1e-9)
        assert scores.smooth_ece == pytest.approx(metrics.smooth_ece(inside, y), rel=1e-6)
        assert scores.classwise_ece == pytest.approx(metrics.classwise_ece(inside, y), rel=1e-9)
        assert scores.debiased_rmsce == pytest.approx(metrics.debiased_rmsce(inside, y), abs=1e-7)
        floor = metrics.calibration_floor(inside)
        assert [scores.floor, *scores.floor_interval] == pytest.approx(list(floor), rel=1e-9)
        near = {"rel": 1e-9, "abs": 1e-12}  # batches of 40 instead of 150 change the last bits
        assert scores.accuracy == metrics.accuracy(inside, y)
        assert scores.confidence == pytest.approx(metrics.mmc(inside), **near)
        assert scores.nll == pytest.approx(metrics.nll(inside, y), **near)
        assert scores.ece == pytest.approx(metrics.ece(inside, y), **near)
        assert scores.brier == pytest.approx(metrics.brier(inside, y), **near)
        assert sum(scores.reliability.count) == sum(found.rankings[method].histogram) == 150
        curve = metrics.risk_coverage(inside.amax(1), correct).risk
        assert found.selective[method][-1] == pytest.approx(curve[-1].item())
        assert found.selective[method][KEPT_SHARES.index(0.8)] == pytest.approx(curve[119].item())
        for name, (low, high) in scores.intervals.items():
            assert low < high
            assert (
                name == "ece" or low <= getattr(scores, name) <= high
            )  # the bootstrap shifts the ECE upwards
        assert ring_scores[method].confidence == pytest.approx(metrics.mmc(outside), **near)
        rank = ranks.get(method, predict)
        assert ring_scores[method].auroc == pytest.approx(metrics.auroc(rank(x), rank(ring)), **near)
        assert ring_scores[method].fpr95 == pytest.approx(metrics.fpr95(rank(x), rank(ring)), **near)
        assert sum(found.outliers[0].passing[method].histogram) == 70
        at_95 = found.outliers[0].passing[method].share[KEPT_SHARES.index(0.95)]
        assert at_95 == pytest.approx(ring_scores[method].fpr95)
        assert found.groups["unfamiliar"].scores[method].auroc == ring_scores[method].auroc
        for each in found.scaled:
            assert each.accuracy[method] == pytest.approx(
                metrics.accuracy(predict(each.delta * x), y), **near
            )
            assert each.confidence[method] == pytest.approx(metrics.mmc(predict(each.delta * x)), **near)
            scaled_scores, usual_scores = (
                values.amax(1) if values.dim() > 1 else values for values in (rank(each.delta * x), rank(x))
            )
            refused = scaled_scores < metrics.threshold(usual_scores, accept=0.95)
            still = predict(each.delta * x).argmax(1) == y
            # In other batches the last bits differ, so that one of 150 may fall on the other side.
            assert each.refused[method] == pytest.approx(refused.double().mean().item(), abs=0.007)
            assert each.refused_right[method] == pytest.approx(
                (refused & still).double().mean().item(), abs=0.007
            )
        assert [each.delta for each in found.scaled] == [1.5, 2.0, 10.0, 2000.0]
        assert found.ray is not None
        confidence = predict(found.ray.delta[-1] * x).max(1).values.double()
        assert found.ray.mean[method][-1] == pytest.approx(confidence.mean().item(), **near)
        assert found.ray.low[method][-1] == pytest.approx(confidence.quantile(0.1).item(), **near)
        assert found.ray.high[method][-1] == pytest.approx(confidence.quantile(0.9).item(), **near)
        far = found.outliers[-1]
        assert far.name == "Test inputs × 2,000"
        assert far.scores[method].confidence == pytest.approx(metrics.mmc(predict(2000 * x)), **near)
    assert found.changed_labels == int((plain(x).argmax(1) != bayes.predict_proba(x).argmax(1)).sum())


def test_labels_that_bitbayes_changes_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Laplace.predict_and_score

    def contrary(self: Laplace, x: Tensor) -> tuple[Tensor, Tensor]:
        probabilities, scores = honest(self, x)
        probabilities[:3] = probabilities[:3].roll(1, dims=1)  # another class for three of each batch
        return probabilities, scores

    model, before = trained(3, 3), usual().changed_labels
    monkeypatch.setattr(Laplace, "predict_and_score", contrary)
    assert run(model, loaders(3)).changed_labels == before + 3 * 4


def test_a_shuffling_test_loader_changes_nothing() -> None:
    straight, shuffled = usual(), run(trained(3, 3), loaders(3, shuffle=True))
    assert shuffled.changed_labels == straight.changed_labels
    for method in AUDITED_METHODS:
        assert shuffled.test[method].accuracy == straight.test[method].accuracy
        assert shuffled.test[method].nll == pytest.approx(straight.test[method].nll, rel=1e-4)


def test_the_seed_decides_the_noise_and_the_noise_is_not_that_of_tuning() -> None:
    model, stage = trained(3, 3), ""
    seen: dict[str, set[bytes]] = {}

    def watch(_: nn.Module, args: tuple[Tensor]) -> None:
        seen.setdefault(stage, set()).update(row.numpy().tobytes() for row in args[0])

    def progress(name: str, done: int, total: int | None) -> None:
        nonlocal stage
        stage = name

    model.register_forward_pre_hook(watch)
    data = loaders(3)
    data["test"] = data["validation"]  # the same range, so that equal random numbers would be equal noise
    first = run(model, data, seed=0, progress=progress)
    tuned_on = seen["Paper’s objective"] - seen["Test data"]
    assert len(tuned_on) == 90  # the noise that the paper's objective draws
    assert not tuned_on & seen["Outliers"]

    def noise(found: Audit) -> float:
        return next(o for o in found.outliers if o.kind == "noise").scores["plain"].confidence

    again, other = (run(model, data, seed=seed) for seed in (0, 1))
    assert noise(again) == noise(first) != noise(other)


def test_stages_are_reported_from_start_to_end() -> None:
    steps: dict[str, list[tuple[int, int | None]]] = {}
    run(trained(3, 3), loaders(3), progress=lambda name, *step: steps.setdefault(name, []).append(step))
    assert list(steps) == [
        "Fitting",
        "Temperature",
        "Tuning",
        "Costs",
        "Paper’s objective",
        "Test data",
        "Outliers",
        "Settings",
        "Far away",
        "At infinity",
    ]
    assert steps["Fitting"] == [(0, 3), (1, 3), (1, 3), (2, 3), (2, 3), (3, 3)]
    assert all(done == total for done, total in (stage[-1] for stage in steps.values()))


def test_at_most_a_thousand_test_inputs_are_kept_for_noise_and_scaling() -> None:
    data = loaders(3) | {"test": DataLoader(TensorDataset(*blobs(1300, 3, 2)), 400)}
    found = run(trained(3, 3), data)
    assert found.sizes["test"] == 1300
    assert [outlier.size for outlier in found.outliers] == [1000] * 4
    assert found.ray is not None
    assert found.ray.size == 200


def test_tokens_are_neither_scaled_nor_replaced_by_noise() -> None:
    class Bag(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.head = nn.EmbeddingBag(20, 8), nn.Linear(8, 2)

        def forward(self, tokens: Tensor) -> Tensor:
            return self.head(self.embedding(tokens))

    generator = torch.Generator().manual_seed(0)
    tokens, y = torch.randint(0, 20, (60, 5), generator=generator), torch.arange(60) % 2
    data = [(tokens, y)]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Bag()
    found = audit(model, data, data, data, {"repeats": torch.zeros(10, 5, dtype=torch.long)})
    assert [outlier.name for outlier in found.outliers] == ["repeats"]
    assert found.ray is None
    assert any("noise and far-away inputs were skipped" in note for note in found.notes)
    assert found.methods == AUDITED_METHODS and found.details == {}
    assert any(
        note.startswith("“Paper’s objective” is left out of the details: it needs noise")
        for note in found.notes
    )


def test_mappings_work_as_far_as_they_can() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = trained(3, 3)

        def forward(self, points: Tensor) -> Tensor:
            return self.inner(points)  # type: ignore[no-any-return]

    x, y = blobs(90, 3, 1)
    data = [{"points": x[:60], "labels": y[:60]}, {"points": x[60:], "labels": y[60:]}]
    found = audit(Named(), data, data, data, {"far": [{"points": 50 * x}]})
    assert found.sizes == {"train": 90, "validation": 90, "test": 90}
    plain = [(x[:60], y[:60]), (x[60:], y[60:])]
    same = audit(Named(), plain, plain, plain, {"far": 50 * x})
    for ours, theirs in zip(found.outliers, same.outliers, strict=True):
        assert (ours.name, ours.size) == (theirs.name, theirs.size)
        for method in found.methods:
            assert ours.scores[method].auroc == pytest.approx(theirs.scores[method].auroc, abs=1e-6)
    assert found.ray is not None and same.ray is not None
    assert found.ray.mean["bitbayes"] == pytest.approx(same.ray.mean["bitbayes"], abs=1e-6)
    assert any("one floating-point tensor, and the inputs are a mapping" in note for note in found.notes)
    assert any("at infinity were skipped: they need inputs in one tensor" in note for note in found.notes)


def test_a_network_that_overflows_far_away_is_audited_up_to_there() -> None:
    class Overflowing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = trained(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x.where(x.abs() < 2000, math.inf))  # type: ignore[no-any-return]

    found = run(Overflowing(), loaders(3))
    assert [outlier.name for outlier in found.outliers] == ["Uniform noise", "Noise × 100"]
    assert found.ray is not None
    assert 100 <= found.ray.delta[-1] < 10_000
    assert any(note.startswith("Noise × 2,000 was skipped: ") for note in found.notes)
    assert any("stop before δ =" in note for note in found.notes)


def test_the_model_is_left_as_it_was() -> None:
    model = trained(3, 3).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    run(model, loaders(3))
    assert all(module.training for module in model.modules())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_warning_of_the_search_becomes_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    def tune(self: Laplace, *args: Any, **options: Any) -> None:
        if options.get("objective") == "ood":
            warnings.warn("the best value lies on the edge", EdgeWarning, stacklevel=1)
            warnings.warn("another matter", UserWarning, stacklevel=1)
        self.prior_variance = 1.0
        list(args[0])

    monkeypatch.setattr(Laplace, "tune", tune)
    with pytest.warns(UserWarning, match="another matter") as passed_on:
        found = run(trained(3, 3), loaders(3))
    assert found.notes == ["Paper’s objective: the best value lies on the edge"]
    assert len(passed_on) == 1


def _once() -> Iterator[tuple[Tensor, Tensor]]:
    yield blobs(30, 3, 0)


@pytest.mark.parametrize("name", ["train", "validation", "test"])
@pytest.mark.parametrize(
    "loader, message",
    [
        ([torch.zeros(4, 2)], "batch 0 is a Tensor: expected a pair"),
        ([], "empty"),
        (3, "got a int"),
        (_once(), "a generator, which can be read only once"),
    ],
)
def test_a_loader_that_will_not_do_is_named_before_any_work(name: str, loader: Any, message: str) -> None:
    stages: list[str] = []
    with pytest.raises(DataError, match=message) as error:
        run(trained(3, 3), loaders(3) | {name: loader}, progress=lambda stage, *_: stages.append(stage))
    assert str(error.value).startswith(f"'{name}'")
    assert stages == []


def test_outliers_that_will_not_do_are_named() -> None:
    with pytest.raises(DataError, match=r"^outliers 'ring': "):
        run(trained(3, 3), loaders(3), {"ring": torch.full((5, 2), math.nan)})
    with pytest.raises(
        DataError,
        match=r"^outliers 'ring': batch 0: 'plain' raised RuntimeError on inputs of shape \(5, 7\): mat1",
    ):
        run(trained(3, 3), loaders(3), {"ring": torch.zeros(5, 7)})
    with pytest.raises(DataError, match=r"^outliers 'ring': a tensor of shape \(0, 2\) holds no inputs"):
        run(trained(3, 3), loaders(3), {"ring": torch.zeros(0, 2)})
    with pytest.raises(DataError, match=r"^outliers 'ring': an array of shape \(0, 2\) holds no inputs"):
        run(trained(3, 3), loaders(3), {"ring": np.zeros((0, 2))})
    with pytest.raises(DataError, match=r"^outliers 'ring': there are no inputs"):
        audit(trained(3, 3), test=blobs(30, 3, 2), outliers={"ring": [torch.zeros(0, 2)]})


def test_lists_of_numbers_are_no_inputs() -> None:
    x, y = blobs(30, 3, 2)
    with pytest.raises(DataError, match=r"^'test': the input is no tensor: expected a tensor"):
        audit(lambda x: x, test=(x.tolist(), y.tolist()))


@pytest.mark.parametrize("names", [("Uniform noise",), ("left  ring", "left ring")])
def test_two_sets_of_one_name_would_be_mixed_up(names: tuple[str, ...]) -> None:
    with pytest.raises(DataError, match=rf"^outliers '{names[-1]}': the report has another set of this name"):
        run(trained(3, 3), loaders(3), {name: torch.full((5, 2), 9.0) for name in names})


class Stream(IterableDataset[tuple[Tensor, Tensor]]):
    """Points that come one by one: nobody knows how many."""

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return iter(list(zip(*blobs(60, 3, 0), strict=True)))


def test_a_stream_of_data_has_no_length() -> None:
    steps: list[int | None] = []
    streams = {name: DataLoader(Stream(), 20) for name in ("train", "validation", "test")}
    found = run(trained(3, 3), streams, progress=lambda stage, done, all: steps.append(all))
    assert found.sizes == {"train": 60, "validation": 60, "test": 60}
    assert None in steps


@pytest.mark.parametrize("k, outputs", [(3, 3), (2, 1)])
def test_limits_of_each_class(k: int, outputs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bitbayes.auditing.scores.MOST_LIMITS_PER_CLASS", 20)
    model, data = trained(k, outputs), loaders(k)
    found = run(model, data)
    bayes = Laplace(model).fit(data["train"]).tune(data["validation"])
    x, y = blobs(150, k, 2)
    assert [row.label for row in found.infinity] == list(range(k))
    for row in found.infinity:
        far = bayes.predict_proba(1e12 * x[y == row.label][:20]).amax(1)
        assert row.size == 20
        assert row.mean == pytest.approx(far.mean().item(), abs=1e-4)
        assert row.largest == pytest.approx(far.max().item(), abs=1e-4)
        assert row.alpha is not None and row.certified is not None
        rays = x[y == row.label][:20]
        for factor in (1.0, 3.0, 100.0):
            beyond = bayes.predict_proba(factor * max(row.alpha, 1e-3) * rays).amax(1)
            assert beyond.max() <= row.certified + 1e-4


def test_limits_are_skipped_with_a_note_where_the_network_is_not_piecewise_affine() -> None:
    model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 3))
    found = run(model, loaders(3))
    assert found.infinity == []
    (note,) = [note for note in found.notes if "infinity" in note]
    assert "tanh" in note


def test_the_curve_of_prior_variances_is_that_of_the_library() -> None:
    model, data = trained(3, 3), loaders(3)
    ring = 10 * torch.randn(70, 2, generator=torch.Generator().manual_seed(3))
    far = ring + 30
    curve = run(model, data, {"ring": ring, "far": far}).prior_curve
    assert curve is not None
    assert curve.sets == ["ring", "far"]
    bayes = Laplace(model, residual=False).fit(data["train"])
    x, y = blobs(150, 3, 2)
    for place in (0, 5, -1):
        bayes.prior_variance = curve.prior_variance[place]
        inside = bayes.score(x)
        assert curve.ece[place] == pytest.approx(metrics.ece(bayes.predict_proba(x), y), abs=1e-5)
        separations = [metrics.auroc(inside, bayes.score(each)) for each in (ring, far)]
        assert curve.auroc[place] == pytest.approx(sum(separations) / 2, abs=1e-3)
        passing = [metrics.fpr95(inside, bayes.score(each)) for each in (ring, far)]
        assert curve.fpr95[place] == pytest.approx(sum(passing) / 2, abs=0.02)


def test_without_given_outliers_noise_is_what_is_unfamiliar() -> None:
    found = usual()
    assert found.groups["unfamiliar"].sets == ["Uniform noise"]
    assert found.groups["far"].sets == ["Noise × 100", "Noise × 2,000", "Test inputs × 2,000"]
    assert [each.source for each in found.examples[:2]] == ["Test data", "Test data"]
    assert len(found.examples) == 9
    assert all(len(each.values) == each.size == 2 and each.image is None for each in found.examples)


def test_costs_are_ratios_to_the_same_forward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    # A forward pass over a batch of 40 takes 4 of work, so one over 120 training inputs takes 12.
    monkeypatch.setattr(
        "bitbayes.auditing.network_columns.median_duration", lambda first, again: Duration(6.0, 24.0)
    )
    monkeypatch.setattr(
        "bitbayes.auditing.network_columns.durations_in_turns",
        lambda *_: (Duration(2.0, 4.0), Duration(3.0, 10.0)),
    )
    assert run(trained(3, 3), loaders(3)).cost == Cost(
        fit_seconds=6.0,
        tune_seconds=6.0,
        predict_milliseconds=75.0,
        forward_milliseconds=50.0,
        fit=2.0,
        tune=2.0,
        predict=2.5,
    )


def test_outliers_must_be_named_and_readable_twice() -> None:
    with pytest.raises(DataError, match=r"outliers is a Tensor: give a dict from a name"):
        run(trained(3, 3), loaders(3), torch.zeros(3, 2))
    with pytest.raises(DataError, match=r"outliers 'ring': a generator can be read only once"):
        run(trained(3, 3), loaders(3), {"ring": _once()})


def test_classes_segments_and_a_promise() -> None:
    x, y = blobs(150, 3, 2)
    site = [["north", "south", "<far>"][i % 10 // 4] for i in range(150)]  # 60, 60 and 30 of them
    model, data = trained(3, 3), loaders(3)
    names = {"name": "<Pets>", "classes": ["cat", "dog", "eel"], "features": ["width", "height"]}
    found = run(model, data | {"test": (x, y, site)}, segment="site", **names)
    assert (found.name, found.class_names, found.features) == tuple(names.values())
    bayes = Laplace(model).fit(data["train"]).tune(data["validation"])
    probs, scores = bayes.predict_and_score(x)
    right, threshold = probs.argmax(1) == y, metrics.threshold(scores, accept=0.95)
    for parts, of in ((found.by_class, [names["classes"][i] for i in y]), (found.by_segment, site)):
        accuracies = [each.accuracy["bitbayes"] for each in parts]
        assert accuracies == sorted(accuracies) and {each.name for each in parts} == set(of)
        for each in parts:
            own = torch.tensor([name == each.name for name in of])
            assert each.size == int(own.sum()) and not each.few
            assert each.accuracy["bitbayes"] == pytest.approx(right[own].double().mean().item())
            assert each.confidence["bitbayes"] == pytest.approx(probs[own].amax(1).mean().item(), rel=1e-5)
            refused = (scores[own] < threshold).double().mean().item()
            assert each.refused["bitbayes"] == pytest.approx(refused, abs=0.034)  # one input, by rounding
    assert [each.name in names["classes"] for each in found.examples] == [True] * 3 + [False] * 6
    # There is as much of a promise as the library gives on the same data: none.
    assert found.promise is not None and found.promise.threshold is None
    with pytest.raises(DataError, match="no threshold can promise") as refusal:
        bayes.threshold([(x, y)], risk=found.promise.risk)
    assert found.promise.reason.split(":")[0] == str(refusal.value).split(":")[0]
    assert "&lt;Pets&gt;" in render_page(found) and "<far>" not in render_page(found)
    assert json.loads(found.to_json())["by_segment"][0]["size"] in (60, 30)


def test_nothing_is_promised_on_data_that_were_seen() -> None:
    data = loaders(3)
    promise = run(trained(3, 3), data | {"test": data["validation"]}).promise
    assert promise is not None and promise.threshold is None
    assert promise.reason == "some test inputs are copies of validation inputs"


@pytest.mark.parametrize(
    "words, message",
    [
        ({"classes": ["cat", "dog"]}, "classes has 2 names, and the model has 3 classes"),
        ({"classes": ["cat", "dog", "cat"]}, "classes has 'cat' twice"),
        ({"classes": "cat"}, "classes is a str: give a list of texts"),
        ({"features": ["width"]}, "features has 1 name, and an input has 2 numbers"),
        ({"segment": "site"}, "'test', batch 0: there is no column 'site': give mappings that have it, or"),
        ({"segment": 3}, "segment=3: give the name of a column"),
    ],
)
def test_names_that_will_not_do_are_refused_before_any_work(words: Any, message: str) -> None:
    stages: list[str] = []
    with pytest.raises(BitbayesError, match=f"^{re.escape(message)}"):
        run(trained(3, 3), loaders(3), progress=lambda stage, *_: stages.append(stage), **words)
    assert stages == []


def forest() -> Any:
    ensemble = pytest.importorskip("sklearn.ensemble", exc_type=ImportError)
    x, y = blobs(120, 3, 0)
    return ensemble.RandomForestClassifier(20, min_samples_leaf=3, random_state=0).fit(x.numpy(), y.numpy())


def test_a_network_and_its_rivals_side_by_side() -> None:
    net, clf = trained(3, 3), forest()
    sizes = enumerate((120, 90, 150))
    train, validation, test = (tuple(each.numpy() for each in blobs(n, 3, seed)) for seed, n in sizes)
    bayes = Laplace(net).fit([blobs(120, 3, 0)]).tune([blobs(90, 3, 1)])
    seen: list[Any] = []

    def call(x: Any) -> Any:
        seen.append(x)
        return clf.predict_proba(x)

    scored = bb.Predictor(call, score=lambda x: -abs(x[:, 0]))
    models = {"forest": bb.Predictor(call), "net": net, "scored": scored, "mine": bayes}
    found = audit(models, train, validation, test, {"ring": 20 * torch.randn(70, 2)})
    assert found.methods == ("net", "temperature", "energy", "bitbayes", "forest", "scored", "mine")
    assert (found.base, found.ours) == ("net", "bitbayes")
    assert all(isinstance(x, np.ndarray) for x in seen)  # also of noise, and of outliers in a tensor
    x, y = blobs(150, 3, 2)
    probs = torch.from_numpy(clf.predict_proba(x.numpy()))
    for name in ("forest", "scored"):
        assert found.test[name].nll == pytest.approx(metrics.nll(probs, y))
        assert found.test[name].against["net"].keys() == set(COMPARED_ON_TEST)
    assert found.rankings["scored"].by == "score" and found.rankings["forest"].by == "confidence"
    # The audit's own bitbayes, and the same fitted by hand, are level.
    assert found.test["mine"].nll == pytest.approx(found.test["bitbayes"].nll, rel=1e-4)
    assert set(found.test["mine"].against["bitbayes"].values()) == {"same"}
    assert set(found.outliers[0].scores) == set(found.methods)
    assert json.loads(found.to_json())["test"].keys() == set(found.methods)
    assert "forest" in render_page(found) and "scored" in repr(found) + str(terminal_table(found).columns)


def test_functions_alone_need_no_training_data() -> None:
    net = trained(3, 3)
    x, y = blobs(150, 3, 2)
    sharp = bb.Predictor(lambda x: 9 * net(x), output="logits")
    found = audit({"a": lambda x: net(x).softmax(1), "b": sharp}, test=[(x, y)], outliers={"far": 30 * x})
    assert (found.methods, found.base, found.ours) == (("a", "b"), "a", None)
    assert found.sizes == {"test": 150} and found.validation_nll == {} and set(found.errors) == {"test"}
    assert found.test["b"].against["a"]["nll"] == "worse" and found.test["a"].against["b"]["nll"] == "better"
    assert (found.cost, found.changed_labels, found.prior_curve, found.infinity) == (None, None, None, [])
    assert found.ray is not None and [each.kind for each in found.outliers][:2] == ["given", "noise"]
    assert "What gets through?" in render_page(found)
    assert check_conditions(found, [parse_condition("b.nll>a.nll")])
    alone = audit(sharp, test=(x, y))
    assert alone.methods == ("predictor",) and alone.verdict and render_page(alone)


def test_a_network_without_training_or_validation_data_has_fewer_columns() -> None:
    data = loaders(3)
    found = audit(trained(3, 3), test=data["test"])
    assert found.methods == ("plain", "energy") and found.ours is None
    assert any("bitbayes are left out: they need validation data" in note for note in found.notes)
    found = audit(trained(3, 3), None, data["validation"], data["test"])
    assert found.methods == ("plain", "temperature", "energy") and "validation" in found.errors
    assert any("bitbayes is left out: it needs the training data" in note for note in found.notes)
    assert render_page(found)
    with pytest.raises(ArgumentError, match="test is None"):
        audit(trained(3, 3))


def test_mappings_with_metadata_reach_functions_whole() -> None:
    x, y = blobs(90, 3, 1)
    data = [{"x": x, "weight": torch.ones(90), "path": ["a"] * 90, "labels": y}]
    seen: list[Any] = []

    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = trained(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x)  # type: ignore[no-any-return]

    net = Named()

    def call(batch: Any) -> Tensor:
        seen.append(set(batch))
        return net(batch["x"]).softmax(1)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnusedDataWarning)  # of what the network does not take
        far = [{"x": 50 * x, "weight": x[:, 0]}]
        found = audit({"net": net, "call": call}, data, data, data, {"far": far})
    assert seen[0] == {"x", "weight", "path"}
    assert found.test["call"].nll == pytest.approx(found.test["net"].nll, rel=1e-6)


def fails_at(number: int, error: Exception) -> Any:
    calls = iter(range(10_000))

    def call(x: Tensor) -> Tensor:
        if next(calls) == number:
            raise error
        return torch.full((len(x), 3), 1 / 3)

    return call


@pytest.mark.parametrize("name", ["train", "validation", "test"])
def test_what_is_not_finite_is_named_with_set_and_batch(name: str) -> None:
    x, y = blobs(120, 3, 0)
    broken = x.clone()
    broken[70, 0] = math.nan
    with pytest.raises(BitbayesError, match=rf"^'{name}'.*batch 1.*(not finite|NaN or infinity)"):
        run(trained(3, 3), loaders(3) | {name: DataLoader(TensorDataset(broken, y), 60)})


def test_a_predictor_that_raises_in_the_middle_is_named() -> None:
    data = loaders(3)
    # The first call is that of the check before any work.
    message = r"^'test': batch 2: 'b' raised ZeroDivisionError on inputs of shape \(40, 2\): by zero"
    models = {"a": fails_at(-1, OSError()), "b": fails_at(3, ZeroDivisionError("by zero"))}
    with pytest.raises(DataError, match=message):
        audit(models, test=data["test"])
    call, ring = fails_at(5, ZeroDivisionError()), torch.ones(9, 2)
    with pytest.raises(DataError, match=r"^outliers 'ring': batch 0: 'a' raised ZeroDivisionError"):
        audit({"a": call}, test=data["test"], outliers={"ring": ring})


def test_what_a_function_gives_is_checked_before_any_work() -> None:
    stages: list[str] = []
    models = {"net": trained(3, 3), "call": lambda x: 5 * torch.ones(len(x), 3)}
    with pytest.raises(
        DataError, match=r"^'test': batch 0: 'call': a row that it returned sums to 15"
    ) as error:
        run(models, loaders(3), progress=lambda stage, *_: stages.append(stage))  # type: ignore[arg-type]
    assert 'bb.Predictor(call, output="logits")' in str(error.value) and stages == []
    models["call"] = lambda x: torch.full((len(x), 2), 0.5)
    with pytest.raises(DataError, match=r"'call' gives 2 probabilities for each input, and 'net' 3"):
        run(models, loaders(3), progress=lambda stage, *_: stages.append(stage))  # type: ignore[arg-type]
    assert stages == []


@pytest.mark.parametrize("name", ["train", "validation", "test"])
def test_a_set_of_one_class_is_named(name: str) -> None:
    x, _ = blobs(80, 3, 0)
    with pytest.raises(DataError, match=rf"'{name}': the label of all 80 inputs is 2"):
        run(trained(3, 3), loaders(3) | {name: [(x, torch.full((80,), 2))]})


def test_regression_is_referred_to_evaluate_and_the_plots() -> None:
    x, _ = blobs(80, 3, 0)
    data = x, x.sum(1)  # arrays are checked when they are read, and loaders before
    with pytest.raises(DataError, match=r"^'test', batch 0: a label .*`evaluate.*`bb.plots.intervals`"):
        audit(lambda x: x.softmax(1), test=data)
