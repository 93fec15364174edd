"""A Flower app with scikit-learn, tuned by fedtuner."""
