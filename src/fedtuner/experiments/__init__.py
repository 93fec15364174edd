"""Comparisons over seeds: suites of studies, their statistics, tables and figures; and the theorem's own experiment."""
