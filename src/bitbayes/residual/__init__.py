"""The ReLU-GP residual: a variance that grows with the distance from the data."""
