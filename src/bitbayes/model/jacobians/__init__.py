"""Derivatives of the logits in the parameters of every layer."""
