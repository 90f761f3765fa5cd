"""Train the explorer's networks, and keep their numbers in src/bitbayes/explorer/numbers.json.

    python scripts/make_explorer_numbers.py

It takes about a minute in one thread.
"""

import json
from pathlib import Path

from bitbayes.explorer.numbers import train_numbers

FILE = Path(__file__).parents[1] / "src/bitbayes/explorer/numbers.json"

if __name__ == "__main__":
    numbers = train_numbers()
    FILE.write_text(json.dumps(numbers, separators=(",", ":"), allow_nan=False) + "\n", encoding="utf-8")
    print(f"{FILE}: {FILE.stat().st_size:,} bytes")
