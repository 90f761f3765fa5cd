"""The types of the public face: what an editor offers, and what a type checker catches."""

import inspect
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from numpy.typing import ArrayLike

import bitbayes as bb
from bitbayes import options, rays
from bitbayes.likelihoods import LIKELIHOODS, closed_form_names
from bitbayes.structures import CURVATURES
from bitbayes.tuning import CALIBRATED, EVIDENCE
from bitbayes.tuning.objectives import OBJECTIVES, PENALTIES

ROOT = Path(__file__).parents[2]
# These adapt to other libraries, which call their methods with objects of their own: only their constructors
# are looked at.
ADAPTERS = {"lightning", "transformers", "openood"}
SLOW = {"lightning", "transformers"}  # they take seconds to import
PUBLIC = [
    pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name
    for name in sorted(set(bb.__all__) - {"__version__"})
]


def test_editors_are_offered_what_is_accepted():
    # Other tests may have imported the paper's structure, which is not the library's.
    own = {name for name, kind in CURVATURES.items() if kind.__module__.startswith("bitbayes.")}
    assert set(get_args(options.Structure)) == {"auto", *own}
    assert set(get_args(options.Method)) == {*closed_form_names(), "mc", "sampled_networks"}
    assert set(get_args(options.PredictiveName)) == {"auto", *get_args(options.Method)}
    assert set(get_args(options.LikelihoodName)) == {"auto", *LIKELIHOODS}
    assert get_args(options.CurvatureName) == options.ESTIMATES
    assert set(get_args(options.Objective)) == {CALIBRATED, EVIDENCE, *OBJECTIVES}
    assert get_args(options.Penalty) == PENALTIES
    assert get_args(options.BoundForm) == rays.FORMS
    given = inspect.signature(bb.Laplace).parameters
    assert {*options.LaplaceOptions.__annotations__} == {*given} - {"model", "places", "unknown"}


def functions(name):
    """Every function and method that somebody who imports this public name may call, by its own name."""
    found = getattr(bb, name)
    own = [name for name in dir(found) if not name.startswith("_")]
    members = getattr(found, "__all__", own) if isinstance(found, ModuleType) else [None]
    for member in members:
        value = found if member is None else getattr(found, member)
        path = f"{name}.{member}" if member else name
        home = getattr(value, "__module__", "")
        if not home.startswith("bitbayes") or (members is own and home != found.__name__):
            continue  # what the module itself imports
        if inspect.isclass(value):
            methods = {**vars(value)}
            for method, each in methods.items():
                each = each.fget if isinstance(each, property) else getattr(each, "__func__", each)
                public = method == "__init__" or (not method.startswith("_") and name not in ADAPTERS)
                if public and inspect.isfunction(each):
                    yield f"{path}.{method}", inspect.unwrap(each)
        elif inspect.isfunction(value):
            yield path, inspect.unwrap(value)


def holds_any(hint):
    if hint is ArrayLike or getattr(get_origin(hint), "__module__", "").startswith("numpy"):
        return False  # numpy's own types, which leave the shape open
    if isinstance(hint, list):  # the arguments of a Callable
        return any(map(holds_any, hint))
    return hint is Any or any(map(holds_any, get_args(hint)))


@pytest.mark.parametrize("name", PUBLIC)
def test_no_public_function_takes_or_gives_just_anything(name):
    if name in ADAPTERS | {"sklearn"}:
        pytest.importorskip({"openood": "torch"}.get(name, name))
    for path, function in functions(name):
        hints = get_type_hints(function)
        named = [each for each in inspect.signature(function).parameters if each not in ("self", "cls")]
        assert not set(named) - set(hints), f"{path} has arguments without a type"
        assert "return" in hints, path
        for argument, hint in hints.items():
            assert not holds_any(hint), f"{path}: {argument} is {hint}"


def test_the_walk_finds_functions_and_any():
    assert len(dict(functions("Laplace"))) > 15 and len(dict(functions("metrics"))) > 10
    assert holds_any(dict[str, list[Any] | None]) and not holds_any(dict[str, list[int] | None])


SNIPPET = """
import torch
import bitbayes as bb
from torch.utils.data import DataLoader, TensorDataset

model = torch.nn.Linear(2, 2)
x, y = torch.zeros(4, 2), torch.zeros(4).long()
loader = DataLoader(TensorDataset(x, y))
bayes = bb.Laplace(model, structure="kron", predictive="mc", residual=("0",), output=lambda out: out[0])
bayes.fit(loader).tune(loader, objective="ood", penalty="uniform", outliers=x)
probs: torch.Tensor = bayes.predict_proba({"input_ids": x}, method="probit")
number: float = bayes.temperature
bayes.prior_variance = {"0": 1.0}
bayes.bound(form="theorem")
ax = bb.plots.reliability({"plain": probs}, y)

bb.Laplace(model, structure="krno")  # error: "Literal['krno']"
bb.Laplace(model, layers="lasst")  # error: "Literal['lasst']"
bb.Laplace(model, predictive="prob")  # error: "Literal['prob']"
bb.Laplace(model, curvature="ggn")  # error: "Literal['ggn']"
bb.Laplace(model, residual="atuo")  # error: "str"
bb.Laplace(model, structur="kron")  # error: "structur"
bayes.tune(loader, objective="odd")  # error: "Literal['odd']"
bayes.predict_proba(x, method="wieghts")  # error: "Literal['wieghts']"
bb.Laplace(model, likelihood="poisson")  # error: "Literal['poisson']"
bayes.bound(form="loose")  # error: "Literal['loose']"
bayes.fit(loader, draws=3)  # error: "draws"
bb.sklearn.LaplaceClassifier(structure="krno")  # error: "Literal['krno']"
bb.transformers.LaplaceCallback(structure="krno")  # error: "Literal['krno']"
bb.Laplac(model)  # error: has no attribute "Laplac"
bayes.structure.upper().missing  # error: has no attribute "missing"
"""


@pytest.mark.slow
def test_mypy_catches_misspelt_options_and_nothing_else(tmp_path):
    file = tmp_path / "snippet.py"
    file.write_text(SNIPPET)
    command = [sys.executable, "-m", "mypy", "--no-error-summary", "--hide-error-context", str(file)]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout
    found = dict(re.findall(r"snippet\.py:(\d+): error: (.*)", shown))
    lines = enumerate(SNIPPET.splitlines(), 1)
    expected = {str(number): line.split("# error: ")[1] for number, line in lines if "# error: " in line}
    assert found.keys() == expected.keys(), shown
    for number, words in expected.items():
        assert words.strip('"') in found[number], found[number]
