"""Best-of-n by the mean of the reward, and by a lower quantile: what is promised, and what is kept.

    python examples/best_of_n.py          # needs transformers; takes seconds on one CPU core

A small transformer learns rewards from synthetic preferences between answers of eight tokens, of which raters
have seen one half. Of n answers to a prompt, some with tokens that nobody has rated, one is chosen: that with
the largest mean reward, or that with the largest lower quantile, both relative to an ordinary answer. The
quantile promises less, and its promises are kept more often: about as often as its name says, though the
largest of many is chosen. On average the mean chooses the better answers.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import GPT2Config, GPT2ForSequenceClassification

import bitbayes as bb

TOKENS, RATED, LENGTH = 100, 50, 8
# An answer's reward is its tokens' mean quality times this. So raters agree on most pairs, but not on all.
SCALE = 6.0
PAIRS, VALIDATION = 600, 300
PROMPTS, ANSWERS = 300, 32
# The lower quantile of 10 percent of a normal distribution, in deviations.
DEVIATIONS = 1.2816


class World:
    """The true rewards, which only the raters know."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.quality = torch.randn(TOKENS, generator=self.generator)

    def answers(self, *shape: int, tokens: int) -> Tensor:
        """Answers (…, 8) of the first tokens of the vocabulary."""
        return torch.randint(tokens, (*shape, LENGTH), generator=self.generator)

    def reward(self, answers: Tensor) -> Tensor:
        """The true rewards (…,) of answers (…, 8)."""
        return SCALE * self.quality[answers].mean(-1)

    def preferences(self, n: int) -> tuple[tuple[dict[str, Tensor], dict[str, Tensor]], Tensor]:
        """Pairs of answers, and labels: 1 where raters prefer the first."""
        first, second = (self.answers(n, tokens=RATED) for _ in range(2))
        p = (self.reward(first) - self.reward(second)).sigmoid()
        labels = (torch.rand(n, generator=self.generator) < p).long()
        return (as_inputs(first), as_inputs(second)), labels


def as_inputs(answers: Tensor) -> dict[str, Tensor]:
    """Tokens (n, 8) as the transformer takes them."""
    return {"input_ids": answers, "attention_mask": torch.ones_like(answers)}


def trained(
    pairs: tuple[dict[str, Tensor], dict[str, Tensor]], labels: Tensor, epochs: int = 12
) -> nn.Module:
    """A transformer with one output, trained to predict the preferences."""
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=TOKENS,
        n_positions=LENGTH,
        n_embd=32,
        n_layer=1,
        n_head=2,
        num_labels=1,
        pad_token_id=TOKENS - 1,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = GPT2ForSequenceClassification(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1)
    for _ in range(epochs):
        for rows in torch.randperm(len(labels)).split(100):
            a, b = (
                model(**{name: each[rows] for name, each in inputs.items()}).logits[:, 0] for inputs in pairs
            )
            loss = functional.binary_cross_entropy_with_logits(a - b, labels[rows].float())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model.eval()


class Choice(NamedTuple):
    """What a way to choose has promised and given, relative to an ordinary answer; means over prompts.

    promised: the number by which the answer was chosen.
    given: its true reward.
    kept: the share of prompts for which the true reward is at least what was promised.
    worse: the share for which it is below that of the ordinary answer.
    """

    promised: float
    given: float
    kept: float
    worse: float

    @classmethod
    def of(cls, by: Tensor, truth: Tensor) -> "Choice":
        """The choice of the largest `by` among the answers of each prompt, both (prompts, n)."""
        index = by.argmax(1, keepdim=True)
        promised, given = by.gather(1, index), truth.gather(1, index)
        shares = (float(each.float().mean()) for each in (given >= promised, given < 0))
        return cls(float(promised.mean()), float(given.mean()), *shares)


def compare(seed: int = 0, prompts: int = PROMPTS) -> tuple[Choice, Choice, dict[str, float]]:
    """Train, fit and tune: the best of n by mean and by quantile, and measures on new preferences."""
    world = World(seed)
    train, validation = world.preferences(PAIRS), world.preferences(VALIDATION)
    bayes = bb.Laplace(trained(*train), likelihood="preference").fit([train]).tune([validation])

    half = prompts, ANSWERS // 2
    answers = torch.cat([world.answers(*half, tokens=RATED), world.answers(*half, tokens=TOKENS)], 1)
    ordinary = world.answers(prompts, 1, tokens=RATED)
    reward = bayes.reward(
        as_inputs(answers.flatten(0, 1)), as_inputs(ordinary.expand(-1, ANSWERS, -1).flatten(0, 1))
    )
    mean, deviation = (each.reshape(prompts, ANSWERS) for each in reward)
    truth = world.reward(answers) - world.reward(ordinary)
    by_mean, by_quantile = (Choice.of(by, truth) for by in (mean, mean - DEVIATIONS * deviation))
    return by_mean, by_quantile, bayes.evaluate([world.preferences(VALIDATION)], progress=False)


def main() -> None:
    """Print what both ways promise and give."""
    by_mean, by_quantile, measures = compare()
    accuracy, nll = measures["accuracy"], measures["nll"]
    print(f"new preferences: {accuracy:.1%} predicted, NLL {nll:.3f} (a coin: {math.log(2):.3f})")
    print(f"best of {ANSWERS}             promised   given    kept   worse than an ordinary answer")
    for name, found in (("the mean", by_mean), ("the 10% quantile", by_quantile)):
        numbers = f"{found.promised:8.2f}{found.given:8.2f}{found.kept:8.0%}{found.worse:8.0%}"
        print(f"  by {name:18}{numbers}")


if __name__ == "__main__":
    main()
