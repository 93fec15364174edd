"""The toy problem of the tests as a Flower app: NumPy alone, a method with slots and memory."""
