"""Loaders as users have them: batches, their order, and points that a sampler repeats."""
