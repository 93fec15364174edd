"""Models that methods can train: any PyTorch module."""
