"""The toy problem of the tests through Flower's secure aggregation."""
