"""What there is to say about a study, read from its journal alone: without its problem, and without loading a model."""

from fedtuner.report.diff import Difference, differences
from fedtuner.report.summary import journal_of, strict, summary

__all__ = ["Difference", "differences", "journal_of", "strict", "summary"]
