"""Imports the library first: pytest would otherwise load the first file of src/ that it collects twice."""

import bitbayes  # noqa: F401
