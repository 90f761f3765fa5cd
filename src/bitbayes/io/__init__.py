"""Files: a fitted posterior, an exported graph, and writing each of them whole or not at all."""
