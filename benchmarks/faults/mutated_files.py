"""Does a posterior's file that was damaged ever load as something else?

    python benchmarks/faults/mutated_files.py --count 100000 --seed 0

Every mutation of a small file is loaded for the model it was fitted on. It must be refused with an error of
bitbayes, or give the posterior that was saved, to the bit. The exit status is 1 if one does not.
"""

import argparse
import random
import struct
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

import bitbayes as bb
from bitbayes.errors import BitbayesError
from bitbayes.progress import track

Mutation = Callable[[bytearray, random.Random], None]


def place(content: bytearray, chance: random.Random) -> int:
    """A place in the file. The length of the header, at the very beginning, comes up often."""
    return chance.randrange(8) if chance.random() < 0.05 else chance.randrange(len(content))


def header_end(content: bytearray) -> int:
    (size,) = struct.unpack("<Q", content[:8])
    return 8 + int(size)


def flip_bits(content: bytearray, chance: random.Random) -> None:
    for _ in range(chance.choice((1, 1, 1, 2, 5))):
        content[place(content, chance)] ^= 1 << chance.randrange(8)


def change_bytes(content: bytearray, chance: random.Random) -> None:
    for _ in range(chance.choice((1, 1, 1, 2, 5))):
        content[place(content, chance)] = chance.randrange(256)


def truncate(content: bytearray, chance: random.Random) -> None:
    del content[chance.choice((chance.randrange(len(content)), len(content) - chance.randrange(1, 20))) :]


def insert(content: bytearray, chance: random.Random) -> None:
    position, size = place(content, chance), chance.randrange(1, 20)
    content[position:position] = chance.choice((bytes(size), chance.randbytes(size)))


def remove(content: bytearray, chance: random.Random) -> None:
    position = place(content, chance)
    del content[position : position + chance.randrange(1, 20)]


def swap_regions(content: bytearray, chance: random.Random) -> None:
    size = chance.choice((1, 8, 24, 64))
    first = chance.randrange(len(content) - 2 * size)
    second = chance.randrange(first + size, len(content) - size)
    one, other = content[first : first + size], content[second : second + size]
    content[first : first + size], content[second : second + size] = other, one


def zero_region(content: bytearray, chance: random.Random) -> None:
    position, size = place(content, chance), chance.choice((1, 8, 64, 512))
    size = len(content[position : position + size])
    content[position : position + size] = bytes(size)


def edit_header(content: bytearray, chance: random.Random) -> None:
    """Change a digit or a letter of the header into another: it stays JSON, and means something else."""
    kinds = (b"0123456789", b"abcdefghijklmnopqrstuvwxyz", b'{}[],:"\\ ')
    kind = chance.choice(kinds)
    places = [i for i in range(8, header_end(content)) if content[i] in kind]
    content[chance.choice(places)] = chance.choice(kind)


def edit_words(content: bytearray, chance: random.Random) -> None:
    """Replace a word of the header by another one, and mend the length of the header."""
    pairs = [(b"F64", b"I64"), (b"F64", b"F32"), (b"1.0", b"9.0"), (b"1.0", b"NaN"), (b"1.0", b"1e999")]
    pairs += [(b"0", b"Infinity"), (b"sha256", b"sha257"), (b"null", b"true"), (b": 4", b": 3")]
    pairs += [(b"[", b"[" * 2000), (b'"bitbayes"', b'"bitbaye"'), (b"__metadata__", b"__metadata_")]
    word, other = chance.choice(pairs)
    end = header_end(content)
    found = [i for i in range(8, end) if content[i : i + len(word)] == word]
    if found:
        position = chance.choice(found)
        content[position : position + len(word)] = other
        content[:8] = struct.pack("<Q", end - 8 + len(other) - len(word))


MUTATIONS: tuple[Mutation, ...] = (
    flip_bits,
    change_bytes,
    truncate,
    insert,
    remove,
    swap_regions,
    zero_region,
    edit_header,
    edit_words,
)


def meaning(bayes: bb.Laplace) -> list[object]:
    """All that a file says, in a form that `==` compares to the bit."""
    fitted = bayes.posterior.fitted
    tensors = [tensor for curvature in fitted.curvature.values() for tensor in curvature.tensors().values()]
    for sums in fitted.level_sums.values():
        tensors += sums.tensors().values()
    told = [(tensor.dtype, tensor.shape, tensor.numpy().tobytes()) for tensor in tensors]
    sums = [fitted.squared_norms, fitted.count, fitted.loss, fitted.fingerprint, fitted.likelihood.name]
    return [told, sums, bayes.options, bayes.settings, [*fitted.curvature]]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=10_000, help="the number of mutations")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()

    torch.manual_seed(0)
    chance = random.Random(arguments.seed)
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))
    x, y = torch.randn(20, 2), torch.arange(20) % 2
    bayes = bb.Laplace(model, prior_variance=1.0).fit([(x, y)])
    found: Counter[str] = Counter(
        dict.fromkeys(["refused", "loaded unchanged", "loaded altered", "other errors"], 0)
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bayes.safetensors"
        bayes.save(path)
        original, expected = path.read_bytes(), meaning(bayes)
        for number in track(range(arguments.count), "mutations", True):
            mutation = MUTATIONS[number % len(MUTATIONS)]
            content = bytearray(original)
            while content == original:  # a mutation may change a byte into itself
                mutation(content, chance)
            path.write_bytes(content)
            try:
                same = meaning(bb.Laplace.load(path, model)) == expected
                outcome = "loaded unchanged" if same else "loaded altered"
            except BitbayesError:
                outcome = "refused"
            except Exception as error:
                outcome = "other errors"
                print(f"{mutation.__name__}: {error!r}"[:200], file=sys.stderr)
            found[outcome] += 1
    print(f"a file of {len(original):,} bytes, {arguments.count:,} mutations tried")
    for outcome, times in found.items():
        print(f"{outcome:>16}: {times:,}")
    return 1 if found["loaded altered"] or found["other errors"] else 0


if __name__ == "__main__":
    sys.exit(main())
