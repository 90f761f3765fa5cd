import base64
import io

import pytest
import torch

from auditing.round_numbers import ranking
from bitbayes.auditing.examples import SurestOutliers, TestExamples, choose_examples
from bitbayes.auditing.findings import Example
from bitbayes.auditing.images import as_image, first_values
from bitbayes.auditing.predictions import Rated

# Of four test inputs the second and the fourth are wrong, and the fourth is the surest.
TEST_PROBS = torch.tensor([[0.9, 0.1], [0.6, 0.4], [0.3, 0.7], [0.2, 0.8]])
TEST_LABELS = torch.tensor([0, 1, 1, 0])


def rows(n: int, start: float) -> torch.Tensor:
    return (start + torch.arange(n, dtype=torch.float32))[:, None].expand(n, 3)


def surest(start: float, *confidences: float) -> SurestOutliers:
    seen = SurestOutliers("plain")
    probs = torch.tensor([[c, 1 - c] for c in confidences])
    for batch in probs.split(2):  # two batches where there are more than two
        seen(rows(len(batch), start), None, {"plain": Rated(batch, batch.amax(1))})
        start += len(batch)
    return seen


@pytest.fixture
def test_examples() -> TestExamples:
    seen = TestExamples("plain")
    for part in (slice(0, 2), slice(2, 4)):
        probs = TEST_PROBS[part]
        x = rows(4, 0)[part]
        seen(x, TEST_LABELS[part], {"plain": Rated(probs, probs.amax(1))})
    return seen


NAMES = ["cat", "dog"]


def chosen(test: TestExamples, *sets: tuple[str, str, SurestOutliers]) -> list[Example]:
    unnamed = [(*each, [None] * each[2].list.seen) for each in sets]
    return choose_examples(test, unnamed, {"plain": ranking("confidence")}, NAMES)


def test_three_of_each_set_that_was_given(test_examples: TestExamples) -> None:
    found = chosen(
        test_examples,
        ("cars", "given", surest(10, 0.6, 0.95, 0.7, 0.8)),
        ("ships", "given", surest(20, 0.8)),
        ("Uniform noise", "noise", surest(40, 0.7)),
        ("Test inputs × 2,000", "far", surest(60, 1.0)),
    )
    # The first number of a row tells which it is.
    assert [(each.source, each.values[0], each.name) for each in found] == [
        ("Test data", 0.0, "cat"),
        ("Test data", 3.0, "cat"),
        ("Test data", 1.0, "dog"),
        ("cars", 11.0, None),
        ("cars", 13.0, None),
        ("cars", 12.0, None),
        ("ships", 20.0, None),
    ]
    assert found[1].predicted == {"plain": 1}
    assert found[1].confidence["plain"] == pytest.approx(0.8)


def test_without_outliers_of_the_user_there_are_noise_and_the_furthest(test_examples: TestExamples) -> None:
    found = chosen(
        test_examples,
        ("Uniform noise", "noise", surest(40, 0.7)),
        ("Noise × 100", "far", surest(50, 0.99)),
        ("Test inputs × 2,000", "far", surest(60, 1.0)),
    )
    assert [each.source for each in found[3:]] == ["Uniform noise", "Test inputs × 2,000"]
    assert [each.values[0] for each in chosen(test_examples)] == [0.0, 3.0, 1.0]


def test_outliers_have_their_own_names(test_examples: TestExamples) -> None:
    seen, rankings = surest(10, 0.6, 0.95, 0.7), {"plain": ranking("confidence")}

    def named(*names: str | None) -> list[str | None]:
        found = choose_examples(test_examples, [("letters", "given", seen, list(names))], rankings, NAMES)
        return [each.name for each in found if each.source == "letters"]

    assert named("letter A", "letter S", "letter Z") == ["letter S", "letter Z", "letter A"]
    assert named(None, "letter S", None) == ["letter S", None, None]
    assert named("label 0", "label 0", "label 0") == [None] * 3  # a label of all says nothing


def test_an_example_gets_through_from_the_share_whose_threshold_it_reaches(
    test_examples: TestExamples,
) -> None:
    # The made-up threshold of a share is 1 − share/2, so 0.6 gets through from 80% on.
    (found,) = [
        each for each in chosen(test_examples, ("cars", "given", surest(10, 0.6))) if each.source == "cars"
    ]
    assert found.kept_from["plain"] == pytest.approx(0.8)
    assert chosen(test_examples)[0].kept_from["plain"] == 0.5


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 40, 20), (28, 28), (3, 300, 150)])
def test_images_keep_their_shape_and_contents(shape: tuple[int, ...]) -> None:
    matplotlib_image = pytest.importorskip("matplotlib.image")
    x = torch.rand(shape)
    kind, _, data = (as_image(-5 + 100 * x) or "").partition(",")
    assert kind == "data:image/png;base64"
    pixels = torch.tensor(matplotlib_image.imread(io.BytesIO(base64.b64decode(data))))
    height, width = shape[-2:]
    if height <= 72:
        assert pixels.shape[:2] == (height, width)
        expected = x if len(shape) == 2 else x.permute(1, 2, 0).squeeze(-1)
        expected = (expected - expected.min()) / (expected.max() - expected.min())
        torch.testing.assert_close(pixels, expected, atol=1 / 255, rtol=0)
    else:
        assert pixels.shape[:2] == (72, 36)


@pytest.mark.parametrize("row", [torch.rand(7), torch.rand(5, 28, 28), torch.arange(100).reshape(10, 10), {}])
def test_what_is_no_image_is_none(row: object) -> None:
    assert as_image(row) is None


def test_constant_and_infinite_images_are_drawn() -> None:
    assert as_image(torch.zeros(1, 8, 8))
    assert as_image(torch.full((1, 8, 8), torch.inf))


def test_values_of_rows_and_mappings() -> None:
    assert first_values(torch.arange(10)) == ([0.0, 1.0, 2.0, 3.0, 4.0, 5.0], 10)
    assert first_values({}) == ([], 0)


def test_of_a_mapping_only_what_has_rows_belongs_to_an_input() -> None:
    seen, probs = SurestOutliers("plain"), torch.tensor([[0.6, 0.4], [0.9, 0.1]])
    x = {"x": rows(2, 0), "prices": torch.zeros(1), "scale": torch.tensor(2.0)}
    seen(x, None, {"plain": Rated(probs, probs.amax(1))})
    assert [[*each.row] for each in seen.list.best] == [["x"], ["x"]]
    assert torch.equal(seen.list.best[0].row["x"], rows(2, 0)[1])
