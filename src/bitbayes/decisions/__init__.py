"""What is decided on probabilities: thresholds, sets and tests with a guarantee."""
