"""Readers for the paper's data sets, from files that the user has. Nothing is downloaded."""

from paper.data.sets import load

__all__ = ["load"]
