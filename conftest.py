"""Imports the library before anything is collected: pytest would otherwise load the first file of src/ twice."""

import bitbayes  # noqa: F401
