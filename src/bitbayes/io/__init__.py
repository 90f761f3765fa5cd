"""Files: a fitted posterior, an exported graph, and how each of them is written atomically."""
