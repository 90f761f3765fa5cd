"""The audit itself: how overconfident is a classifier, and does a Laplace approximation help?

`audit` compares methods on the same inputs: the plain network, the network with a tuned temperature, and the
network with a Gaussian over its last layer, tuned by default and by the paper's objective.
"""

import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from operator import length_hint
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from bitbayes._version import __version__
from bitbayes.auditing.data_checks import count_copies, find_shift
from bitbayes.auditing.examples import TestExamples, choose_examples, example_size
from bitbayes.auditing.findings import DataChecks, Detail
from bitbayes.auditing.generated import noise_like, scaled
from bitbayes.auditing.names import check_features, name_classes, read_names
from bitbayes.auditing.network_columns import NetworkColumns, count_errors, network_columns
from bitbayes.auditing.predictions import (
    FirstInputs,
    Predictions,
    Rated,
    SharedPass,
    arguments_for,
    by_confidence,
    predict,
    predict_labelled,
)
from bitbayes.auditing.predictors import BITBAYES, Columns, Predictor, name_columns
from bitbayes.auditing.prior_curve import measure_prior_curve
from bitbayes.auditing.progress import ReportProgress, reported, shown
from bitbayes.auditing.rankings import rank_test
from bitbayes.auditing.reading import LabelledSet, OutlierInputs
from bitbayes.auditing.regression import refuse_regression
from bitbayes.auditing.report import AuditReport
from bitbayes.auditing.scores import (
    predict_sets,
    score_limits,
    score_outliers,
    score_rays,
    score_scaled,
    score_test,
)
from bitbayes.auditing.segments import check_segments, score_segments
from bitbayes.auditing.selective import promise_risk, score_selective
from bitbayes.auditing.words import join_names, printable
from bitbayes.errors import ArgumentError, DataError, naming
from bitbayes.model import Inputs, model_device

# The mean of this many confidences is known to about two percentage points.
MOST_GENERATED_OUTLIERS = 1000
GENERATED = ("Uniform noise", "Noise × 100", "Noise × 2,000", "Test inputs × 2,000")


# What can be audited.
Model = nn.Module | Predictor | Callable[..., object]
# Loaders, pairs of arrays, and mappings with labels.
Given = Iterable[object]


def audit(
    models: Model | Mapping[str, Model],
    train: Given | None = None,
    validation: Given | None = None,
    test: Given | None = None,
    outliers: Mapping[str, Given] | None = None,
    *,
    name: str | None = None,
    classes: Iterable[str] | None = None,
    features: Iterable[str] | None = None,
    segment: str | None = None,
    seed: int = 0,
    command: str | None = None,
    progress: bool | ReportProgress | None = None,
) -> AuditReport:
    """Measure how overconfident classifiers are, and whether bitbayes helps.

    With a network alone the columns are the plain network ("plain"), temperature scaling ("temperature"), the
    network's probabilities ranked by its energy ("energy"), and the last-layer Laplace approximation, fitted
    and tuned by default ("bitbayes"). The scores of the paper's objective ("paper"), which also uses uniform
    noise, are in `details`. If noise makes no sense for the inputs it is left out, and a note says so.

    With a mapping each predictor has a column of its name. If there is a network, the first one comes first,
    and beside it the same three columns as above. All others follow in their order. They are taken as they
    are, and nothing is fitted for them.

    All scores are on the test data and on outliers. In addition to the given outliers the audit generates
    uniform noise over the range of the test inputs, δ·noise and δ·test inputs. In mappings, the
    floating-point tensors are replaced or scaled. It cannot generate them if the inputs are integers; then it
    adds a note.

    Data are loaders of (x, y), (x, y, …) or mappings with labels, as `Laplace.fit` takes them; or arrays
    (x, y), tensors or arrays of numpy.

    Args:
        models: a predictor, or predictors by name: a trained network that returns logits, a fitted `Laplace`
            or `TemperatureScaling`, a `Predictor`, or a function of inputs that returns probabilities
            (n, k). The output of the first network must be one linear layer. Nothing of them is changed.
        train: what the network was trained on; the Laplace approximation is fitted on it.
        validation: on which the prior variances, the temperatures and the residual are chosen. Without it or
            `train` a network has fewer columns, and a note says so. Other predictors do without both.
        test: what is scored. It must be given.
        outliers: inputs that belong to no class: a tensor, an array, a mapping or a loader for each name.
            With labels, (x, y), these name the examples that are shown: texts as they are, and numbers as
            "label 7".
        name: the title of the report. The default is the name of the network's class, or the names of
            the predictors.
        classes: the names of the classes, in the order of their numbers.
        features: the names of the numbers of an input, for inputs that are rows of a table.
        segment: a column of the test data by which they are scored in parts, too: of mappings, or of the
            third part of (x, y, meta), which is a mapping with that column, or the column itself.
        seed: of the generated noise.
        command: the command that repeats the audit, for the report.
        progress: whether to show bars; None: on terminals and in notebooks. Or a function that is called
            with the name of a stage, the steps done, and the number of all its steps (None if unknown).

    Returns:
        The numbers, with `save(path)` for the report as a page, `to_dict()` and `to_json()`, and a summary
        in a notebook.

    >>> import bitbayes as bb
    >>> _ = torch.manual_seed(0)
    >>> x = torch.cat([torch.randn(60, 2) - 3, torch.randn(60, 2) + 3])
    >>> data = (x, torch.arange(120) // 60)
    >>> found = bb.audit(nn.Linear(2, 2), data, data, data, {"far right": x + 50})
    >>> [outlier.name for outlier in found.outliers]
    ['far right', 'Uniform noise', 'Noise × 100', 'Noise × 2,000', 'Test inputs × 2,000']
    >>> found.methods, found.sizes["test"]
    (('plain', 'temperature', 'energy', 'bitbayes'), 120)

    Functions need no training data:

    >>> one, other = (lambda x, s=s: torch.sigmoid(s * x) / torch.sigmoid(s * x).sum(1, True) for s in (1, 2))
    >>> bb.audit({"one": one, "other": other}, test=data).methods
    ('one', 'other')
    """
    columns = name_columns(models)
    names = "models" if isinstance(models, Mapping) else "model"
    predictors = columns.names(train=False, validation=False)
    title = join_names(predictors) if columns.network is None else type(columns.network).__name__
    if test is None:
        raise ArgumentError("test is None: give a loader of (x, y), or arrays (x, y)")
    request = AuditRequest(
        columns,
        {"train": train, "validation": validation, "test": test},
        outliers,
        seed,
        name or title,
        read_names(classes, "classes"),
        read_names(features, "features"),
        _check_column(segment),
        command or f"bb.audit({names}, train, validation, test, outliers, seed={seed})",
    )
    if columns.network is not None:
        refuse_regression(columns.network, train)
    with shown(progress) as report:
        return _measure(request, report)


class AuditRequest(NamedTuple):
    """What is audited: predictors and sets of labelled data by name, and the other arguments of `audit`."""

    columns: Columns
    data: dict[str, Any]
    outliers: Mapping[str, Any] | None
    seed: int
    name: str
    classes: list[str]
    features: list[str]
    segment: str | None
    command: str


def _check_column(segment: Any) -> str | None:
    if segment is not None and (not isinstance(segment, str) or not segment):
        raise ArgumentError(f"segment={segment!r}: give the name of a column of the test data")
    return segment


def _measure(request: AuditRequest, report: ReportProgress) -> AuditReport:
    """Run the audit and report its progress to `report`."""
    started = time.perf_counter()
    columns, seed = request.columns, request.seed
    network, base = columns.network, columns.base
    device = torch.device("cpu") if network is None else model_device(network)
    notes: list[str] = []
    sets = {
        name: LabelledSet(name, data, network, request.segment if name == "test" else None)
        for name, data in request.data.items()
        if data is not None
    }
    test = sets["test"]
    first = {}
    for name, each in sets.items():
        first[name] = each.first()
        if network is not None:
            with naming(repr(name)):
                arguments_for(network)(first[name].inputs)
    given = _check_outliers(request.outliers, network)
    others, ranked_by = columns.methods(test.form())
    plain = {} if network is None else {base: by_confidence(SharedPass(network).probabilities)}
    with naming("'test'"):
        # What cannot be used is found before any work is done.
        checked = predict(plain | others, first["test"])
    class_names = name_classes(request.classes, next(iter(checked.values())).probs.shape[1])
    check_features(request.features, example_size(first["test"].inputs))
    if network is None:
        own = NetworkColumns({})
    else:
        _note_missing_data(sets, notes)
        own = network_columns(base, network, sets, first["test"].inputs, report, notes)
    methods, ranked_by = {**own.methods, **others}, {**own.ranked_by, **ranked_by}
    everything, bayes = {**methods, **own.details}, own.bayes
    test_examples, kept = TestExamples(base), FirstInputs(MOST_GENERATED_OUTLIERS)

    def keep(inputs: Inputs, labels: Tensor | None, predicted: Predictions) -> None:
        kept.add(inputs)
        test_examples(inputs, labels, predicted)

    with naming("'test'"):
        steps = reported(test.batches(), "Test data", length_hint(test), report)
        predicted, labels = predict_labelled(everything, steps, keep)
    values = list(test.values)
    if request.segment is not None:
        check_segments(values, request.segment)
    inputs = kept.inputs()
    generated = _generate_outliers(inputs, seed, notes)
    found = predict_sets(everything, given + generated, base, report, notes)
    with_column = {method: rated for method, rated in predicted.items() if method in methods}
    rankings = rank_test(with_column, [each.ranked for each in found], ranked_by)
    scored, groups, outlier_details = score_outliers(predicted, rankings, found)
    curve = None
    if bayes is not None and "unfamiliar" in groups:
        members = [(n, data) for n, _, data in given + generated if n in groups["unfamiliar"].sets]
        curve = measure_prior_curve(bayes, test, members, report)
    slightly = (
        score_scaled(methods, inputs, labels, rankings, notes) if inputs is not None and generated else []
    )
    ray = score_rays(methods, inputs, report, notes) if inputs is not None and generated else None
    limits = (
        score_limits(bayes, inputs, labels, report, notes) if bayes and inputs is not None and ray else []
    )
    on_test = score_test(predicted, labels, methods)
    errors = {**own.errors, "test": count_errors(predicted[base], labels)}
    sizes = {**own.sizes, "test": len(labels)}
    checks = _check_data(sets, predicted[base], labels, own.edges)
    worst_by = BITBAYES if bayes else base
    return AuditReport(
        name=printable(request.name),
        classes=len(class_names),
        class_names=class_names,
        features=request.features,
        base=base,
        ours=BITBAYES if bayes else None,
        sizes=sizes,
        errors=errors,
        validation_nll=own.validation_nll,
        test={method: on_test.pop(method) for method in methods},
        details={method: Detail(each, outlier_details[method]) for method, each in on_test.items()},
        selective=score_selective(with_column, labels),
        promise=promise_risk(bayes, test, own.tuned_error, checks, sizes) if bayes else None,
        by_class=score_segments(
            with_column, labels, [class_names[label] for label in labels.tolist()], rankings, worst_by
        ),
        segment=request.segment,
        by_segment=score_segments(with_column, labels, values, rankings, worst_by) if values else [],
        rankings=rankings,
        outliers=scored,
        groups=groups,
        prior_curve=curve,
        examples=choose_examples(
            test_examples, [(s.name, s.kind, s.examples, s.names) for s in found], rankings, class_names
        ),
        scaled=slightly,
        ray=ray,
        infinity=limits,
        changed_labels=_changed_labels(predicted, base) if bayes else None,
        chosen=own.chosen,
        cost=own.cost,
        seconds=time.perf_counter() - started,
        finished=datetime.now(UTC).isoformat(timespec="seconds"),
        seed=seed,
        command=printable(request.command),
        versions=_versions(device),
        notes=[printable(note) for note in notes],
        checks=checks,
    )


def _check_data(
    sets: Mapping[str, LabelledSet], on_test: Rated, labels: Tensor, edges: list[str]
) -> DataChecks:
    """Look for copies across sets, for missing classes and for moved labels, once all sets have been read."""
    classes = on_test.probs.shape[1]
    hashes = {name: each.hashes.parts for name, each in sets.items() if each.hashes}
    pairs = [("validation", "train"), ("test", "train"), ("test", "validation")]
    return DataChecks(
        copies={
            f"{one} in {other}": count_copies(hashes[one], hashes[other])
            for one, other in pairs
            if one in hashes and other in hashes
        },
        missing={
            name: [label for label in range(classes) if label not in each.labels]
            for name, each in sets.items()
            if name != "train" and each.labels
        },
        shift=find_shift(on_test.probs.argmax(1), labels, classes),
        edges=[printable(edge) for edge in edges],
    )


def _changed_labels(predicted: Predictions, base: str) -> int:
    """Return for how many inputs bitbayes gives another class than the base."""
    changed = predicted[base].probs.argmax(1) != predicted[BITBAYES].probs.argmax(1)  # (n,)
    return int(changed.sum())


def _note_missing_data(sets: Mapping[str, LabelledSet], notes: list[str]) -> None:
    if "validation" not in sets:
        notes.append("Temperature scaling and bitbayes are left out: they need validation data.")
    elif "train" not in sets:
        notes.append("bitbayes is left out: it needs the training data.")


def _check_outliers(
    outliers: Mapping[str, Any] | None, network: nn.Module | None
) -> list[tuple[str, str, OutlierInputs]]:
    """Return the name, the kind and the inputs of each given set."""
    if outliers is not None and not isinstance(outliers, Mapping):
        raise DataError(
            f"outliers is a {type(outliers).__name__}: give a dict from a name to a tensor of inputs or a "
            'loader, such as {"letters": letters_loader}'
        )
    sets: list[tuple[str, str, OutlierInputs]] = []
    for name, data in (outliers or {}).items():
        if printable(name) in (*GENERATED, *(other for other, _, _ in sets)):
            raise DataError(
                f"outliers {name!r}: the report has another set of this name: choose another name"
            )
        if 0 in getattr(data, "shape", ()):
            kind = "a tensor" if isinstance(data, Tensor) else "an array"
            raise DataError(f"outliers {name!r}: {kind} of shape {tuple(data.shape)} holds no inputs")
        if isinstance(data, Iterator):
            raise DataError(
                f"outliers {name!r}: a {type(data).__name__} can be read only once: "
                "give a DataLoader, a tensor, or a list of batches"
            )
        sets.append((printable(name), "given", OutlierInputs(data, network)))
    return sets


def _generate_outliers(
    inputs: Inputs | None, seed: int, notes: list[str]
) -> list[tuple[str, str, OutlierInputs]]:
    """Return noise, scaled noise and scaled test inputs; or nothing, and a note that says why.

    Each set is a name, a kind and its inputs.
    """
    if inputs is None:
        notes.append("The inputs hold no floating-point numbers: noise and far-away inputs were skipped.")
        return []
    # `tune` draws noise from small seeds. A distant seed makes sure that the scored noise is different.
    generator = torch.Generator().manual_seed(seed + 1_000_003)
    try:
        noise = noise_like(inputs, MOST_GENERATED_OUTLIERS, generator)
    except DataError as error:
        notes.append(f"Noise and far-away inputs were skipped: {error}")
        return []
    # 100 and 2,000 are the paper's δ for two classes, and for more.
    kinds = "noise", "far", "far", "far"
    inputs_of = noise, scaled(noise, 100), scaled(noise, 2000), scaled(inputs, 2000)
    sets = zip(GENERATED, kinds, inputs_of, strict=True)
    return [(name, kind, OutlierInputs(data, None)) for name, kind, data in sets]


def _versions(device: torch.device) -> dict[str, str]:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return {
        "bitbayes": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": name,
        "threads": str(torch.get_num_threads()),
    }
