"""The arithmetic of a training step: batches, reductions, objectives, KL estimators."""
