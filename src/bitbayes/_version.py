"""The version, in a file of its own so that every room can name it."""

__version__ = "0.1.0"
