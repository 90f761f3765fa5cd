"""`python -m bitbayes`."""

from bitbayes.cli import main

if __name__ == "__main__":
    main()
