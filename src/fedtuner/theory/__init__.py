"""The setting of the paper's theorem, run: FedEx tunes the step size of online gradient descent (docs/theory.md)."""
