"""Temperature scaling: softmax(f / T), with the T > 0 that fits the validation labels best."""

import math
import warnings
from os import PathLike
from typing import Self

import torch
from torch import Tensor, nn

from bitbayes.errors import ArgumentError, DataError, EdgeWarning, ModelError, NotFittedError, one_of
from bitbayes.io import temperature_file
from bitbayes.likelihoods import AUTO, Likelihood, likelihood_for
from bitbayes.model import (
    Data,
    DeferredChecks,
    Inputs,
    Loader,
    NamedInputs,
    call,
    check_loader,
    fingerprint,
    input_batches,
    labelled_batches,
    private_copy,
    unwrapped,
)
from bitbayes.precision import prediction_dtype, to_float64
from bitbayes.prior import positive
from bitbayes.progress import track
from bitbayes.tuning.calibrated import COLDER, WARMER

COLDEST, HOTTEST = 1e-3, 1e3
# Those that have a temperature and one input at each point.
LIKELIHOODS = (AUTO, "categorical", "bernoulli", "multilabel")


class TemperatureScaling(nn.Module):
    """A classifier whose logits are divided by a temperature T: p(y | x) = softmax(f(x) / T).

    A network with one logit gives σ(f(x) / T). `fit` chooses T: it minimises the negative log-likelihood of
    the labels plus the weak prior ½(log T/s)² of `Laplace.tune`, s = 0.15 for T < 1 and 0.35 above. The prior
    decides where there are few labels: if all of them are predicted right, the likelihood alone would make
    every prediction certain. For some hundred points it hardly matters. Bisection in log T finds the zero of
    the derivative, Σₙ (f_y − E_p f)/T + log T/s². There is no step size to choose, and T stays positive.

    With several labels for each input, all of them share T: p(yᵢ = 1 | x) = σ(fᵢ(x) / T), and each label of
    each point counts as one of a network with one logit.

    The temperature is part of `state_dict`, and can be set at any time.

    Args:
        model: a trained network that returns logits. It is not changed.
        likelihood: as of `Laplace`: "multilabel" is for several labels of each input, and must be given.
            "auto" is "bernoulli" for one output and "categorical" for more.

    >>> import bitbayes as bb
    >>> from torch.utils.data import DataLoader, TensorDataset
    >>> x = torch.tensor([[1.0], [1.0], [1.0], [-1.0]]).repeat(1000, 1)
    >>> loader = DataLoader(TensorDataset(x, torch.tensor([1, 1, 0, 0]).repeat(1000)), batch_size=200)
    >>> model = nn.Linear(1, 1, bias=False)
    >>> model.weight.data.fill_(4.0)
    tensor([[4.]])
    >>> scaled = bb.TemperatureScaling(model).fit(loader)
    >>> print(f"{scaled.temperature:.2f}")  # three of four right: 4/T = log 3, up to 1% by the weak prior
    3.60
    """

    _runs_privately = True

    def __init__(self, model: nn.Module, *, likelihood: str = AUTO) -> None:
        super().__init__()
        self.likelihood = one_of("likelihood", likelihood, LIKELIHOODS)
        if not isinstance(model, nn.Module):
            raise ArgumentError(f"model is a {type(model).__name__}: expected a torch.nn.Module")
        self.model = model
        self._temperature: float | None = None

    @property
    def temperature(self) -> float:
        """T, 1 until it is chosen by `fit` or set."""
        return 1.0 if self._temperature is None else self._temperature

    @temperature.setter
    def temperature(self, value: float) -> None:
        self._temperature = positive(value, "temperature")

    # Not a buffer: `half()` would round it, and some devices have no float64.
    def get_extra_state(self) -> Tensor:
        """T for `state_dict`, in float64: (1,), or (0,) if it was not chosen."""
        return torch.tensor([] if self._temperature is None else [self._temperature], dtype=torch.float64)

    def set_extra_state(self, state: Tensor) -> None:
        """Load T from a `state_dict`."""
        values = state.tolist()
        self._temperature = positive(values[0], "temperature") if values else None

    @torch.no_grad()
    def fit(self, val_loader: Loader, *, progress: bool | None = None) -> Self:
        """Choose T on validation data, with one forward pass.

        Warns with an `EdgeWarning` if the best T lies outside the searched range.

        Args:
            val_loader: a loader of (x, y).
            progress: True or False to show a progress bar or not. None shows one on terminals and in
                notebooks.
        """
        outputs, targets = [], []
        steps = track(check_loader(val_loader), "temperature scaling", progress)
        likelihood: Likelihood | None = None
        for batch in labelled_batches(steps, self.model):
            logits = self._logits(batch.inputs, batch.name)
            likelihood = likelihood or likelihood_for(logits.shape[1], self.likelihood)
            assert batch.labels is not None
            with DeferredChecks() as checks:
                labels = likelihood.check_labels(
                    batch.labels, (len(batch), logits.shape[1]), batch.name, checks
                )
            targets.append(labels)
            outputs.append(to_float64(logits))
        assert likelihood is not None  # `labelled_batches` raises on an empty loader
        logits, labels = torch.cat(outputs), torch.cat(targets).to(outputs[0].device)
        if not likelihood.one_label:  # each is one of a network with one logit
            logits, labels = logits.reshape(-1, 1), labels.reshape(-1)
        self.temperature = _best_temperature(logits, labels)
        return self

    def forward(self, x: Tensor | NamedInputs) -> Tensor:
        """Return the logits f(x) / T, in the shape of the model's own output."""
        return call(private_copy(self.model), x) / self.temperature

    @torch.no_grad()
    def predict_proba(self, x: Data) -> Tensor:
        """Return probabilities (n, k), or (n, 2) for a network with one logit. x may be a loader.

        For several labels (n, k) are those of each label, and a loader gives the inputs alone.
        """
        if self._temperature is None:
            raise NotFittedError("this TemperatureScaling is not fitted yet: call `fit(val_loader)` first")
        parts = []
        for batch in input_batches(x, self.model):
            logits = self._logits(batch.inputs, batch.name)
            likelihood = likelihood_for(logits.shape[1], self.likelihood)
            logits = likelihood.remove_shift(logits)  # a small T could make it overflow
            parts.append(likelihood.log_probabilities(logits / self.temperature).exp())
        return torch.cat(parts)

    def save(self, path: str | PathLike[str]) -> None:
        """Write T, the likelihood and the model's fingerprint to a file. The model itself is not saved."""
        if self._temperature is None:
            raise NotFittedError("this TemperatureScaling is not fitted yet: call `fit(val_loader)` first")
        temperature_file.write(path, self._temperature, fingerprint(unwrapped(self.model)), self.likelihood)

    @classmethod
    def load(cls, path: str | PathLike[str], model: nn.Module) -> Self:
        """Read what `save` wrote, for the same model.

        Args:
            path: the file.
            model: the network that it was fitted on, with the weights at fit time.
        """
        temperature, likelihood = temperature_file.read(path, fingerprint(unwrapped(model)))
        scaled = cls(model, likelihood=likelihood)
        scaled.temperature = temperature
        return scaled

    def extra_repr(self) -> str:
        chosen = "" if self._temperature is not None else " (not fitted)"
        return f"temperature={self.temperature:.4g}{chosen}"

    def _logits(self, inputs: Inputs, where: str) -> Tensor:
        """Return the model's logits, (n, k), after checks and in the working precision."""
        output = call(private_copy(self.model), inputs)
        if output.dim() == 1:
            output = output[:, None]
        if output.dim() != 2:
            raise ModelError(f"the model's output has shape {tuple(output.shape)}: expected (n, k) or (n,)")
        if not bool(output.isfinite().all()):
            raise DataError(f"{where}: the model's logits are not finite")
        return output.to(prediction_dtype(output.dtype))


def _best_temperature(logits: Tensor, labels: Tensor) -> float:
    if logits.shape[1] == 1:
        logits = torch.cat([torch.zeros_like(logits), logits], dim=1)  # softmax of (0, f) is (1 − σ(f), σ(f))
    chosen = logits.gather(1, labels[:, None])[:, 0]

    def too_cold(log_temperature: float) -> bool:
        """Return whether the cost falls with T: its derivative in log T is negative."""
        inverse = math.exp(-log_temperature)
        p = (logits * inverse).softmax(1)
        prior = log_temperature / (COLDER if log_temperature < 0 else WARMER) ** 2
        return inverse * float((chosen - (p * logits).sum(1)).sum()) + prior < 0

    low, high = math.log(COLDEST), math.log(HOTTEST)
    for edge, beyond in ((low, not too_cold(low)), (high, too_cold(high))):
        if beyond:
            warnings.warn(
                f"the best temperature lies beyond {math.exp(edge):g}, the edge of what is searched: do the "
                "validation labels fit the model?",
                EdgeWarning,
                stacklevel=3,
            )
            return math.exp(edge)
    for _ in range(60):  # the range, 14 in log T, shrinks below the resolution of float64
        middle = (low + high) / 2
        low, high = (middle, high) if too_cold(middle) else (low, middle)
    return math.exp((low + high) / 2)
