"""The linear head of a model: finding it, its layout, and the features and logits of each batch."""
