"""One root for all errors, and what is said after an unknown name."""

import pytest

from fedtuner import errors
from fedtuner.errors import FedtunerError, FedtunerWarning, Interrupted, SpecError, suggest

NAMES = ["lr", "momentum", "weight_decay", "epochs"]
WORDS = {"lr": "learning rate", "momentum": "momentum", "epochs": "passes over the data"}


def test_one_except_catches_every_error():
    raised = {e for e in vars(errors).values() if isinstance(e, type) and issubclass(e, BaseException)}
    assert len(raised) > 5
    assert all(issubclass(e, FedtunerError) for e in raised - {Interrupted, FedtunerWarning})


def test_a_wrong_setting_is_a_value_error():
    assert issubclass(SpecError, ValueError)


def test_an_interruption_passes_through_handlers_of_errors():
    assert issubclass(Interrupted, KeyboardInterrupt)
    assert not issubclass(Interrupted, Exception)


@pytest.mark.parametrize("known", [NAMES, tuple(NAMES), set(NAMES), dict.fromkeys(NAMES, ""), iter(NAMES)])
def test_any_collection_of_names_will_do(known):
    assert suggest("momentun", known) == "; did you mean 'momentum'?"


@pytest.mark.parametrize(
    ("name", "known", "said"),
    [
        ("epoch", NAMES, "; did you mean 'epochs'?"),
        ("EPOCHS", NAMES, "; did you mean 'epochs'?"),
        ("wieght_decay", NAMES, "; did you mean 'weight_decay'?"),
        ("leraning_rate", WORDS, "; did you mean 'lr'?"),  # by the other words for it
        ("passes_over_data", WORDS, "; did you mean 'epochs'?"),
        ("lr", WORDS, "; did you mean 'lr'?"),
        ("zzz", NAMES, "; known: epochs, lr, momentum, weight_decay"),  # nothing is near: all of them, sorted
        ("zzz", WORDS, "; known: epochs, lr, momentum"),
        ("zzz", [], ""),
        ("", NAMES, "; known: epochs, lr, momentum, weight_decay"),
        (5, NAMES, "; known: epochs, lr, momentum, weight_decay"),  # a value from a file may be anything
    ],
)
def test_suggest(name, known, said):
    assert suggest(name, known) == said


@pytest.mark.parametrize("name", NAMES)
def test_one_wrong_letter_is_always_forgiven(name):
    if len(name) > 3:
        for i in range(len(name)):
            assert suggest(name[:i] + "q" + name[i + 1 :], NAMES) == f"; did you mean {name!r}?"
