"""The networks: as large as published, the same function whatever the layout of their input, and deterministic."""

from __future__ import annotations

import pickle
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedtuner.problems import models
from fedtuner.pytorch import Task

IMAGES = {
    "logistic": (partial(models.logistic, 784, 10), (28, 28)),
    "small_cnn": (models.small_cnn, (28, 28)),
    "small_cnn of colours": (partial(models.small_cnn, 3, 10, 32), (32, 32, 3)),
    "femnist_cnn": (models.femnist_cnn, (28, 28)),
    "cifar_cnn": (models.cifar_cnn, (32, 32, 3)),
}
TEXTS = {"char_lstm": models.char_lstm, "small_lstm": models.small_lstm}


def parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def pixels(n: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, 256, (n, *shape), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def test_leafs_femnist_network():
    """conv 832 + conv 51,264 + fc 6,424,576 + fc 127,038, as the published model has."""
    assert parameters(models.femnist_cnn()) == 6_603_710


def test_the_tutorials_cifar_network():
    """ "1,068,298 learnable parameters", says TensorFlow's tutorial; "about 10^6", say McMahan et al."""
    assert parameters(models.cifar_cnn()) == 1_068_298


def test_the_character_network():
    """McMahan et al. count 866,578 and give no vocabulary: it is what 258 characters and peepholes come to.

    By hand, for V characters: 8 V + 4 * 256 * (8 + 256 + 1) + 4 * 256 * (256 + 256 + 1) + 257 V. PyTorch's LSTM has two
    biases per gate for one: 4 * 256 more in each layer. A peephole is a weight per cell for each of three gates.
    """
    biases, peepholes = 2 * 4 * 256, 2 * 3 * 256
    assert parameters(models.char_lstm(258)) - biases + peepholes == 866_578
    assert parameters(models.char_lstm()) - biases == 265 * 80 + 271_360 + 525_312  # LEAF's 80 characters


def test_the_small_networks():
    assert parameters(models.logistic(784, 10)) == 7_850
    assert parameters(models.small_cnn()) == 80 + 1_168 + 7_850
    assert parameters(models.small_lstm()) == 640 + 4 * (8 + 64 + 2) * 64 + 65 * 80


def test_the_perceptron_is_what_it_was():
    """Studies of digits that are kept on disk continue only on the same parts under the same names."""
    torch.manual_seed(0)
    hidden, output = nn.Linear(64, 64), nn.Linear(64, 10)
    torch.manual_seed(0)
    made = models.mlp(64, 64, 10)
    expected = {"1.weight": hidden.weight, "1.bias": hidden.bias, "4.weight": output.weight, "4.bias": output.bias}
    assert list(made.state_dict()) == list(expected)
    assert all(torch.equal(made.state_dict()[name], value) for name, value in expected.items())


@pytest.mark.slow
@pytest.mark.parametrize("name", IMAGES)
def test_bytes_and_floats_of_any_layout_are_the_same_image(name):
    build, shape = IMAGES[name]
    network, x = build().eval(), pixels(3, *shape)
    expected = network(x)
    assert expected.shape == (3, 62 if name == "femnist_cnn" else 10)
    assert torch.allclose(network(x.float() / 255), expected, atol=1e-5)
    if len(shape) == 3:
        assert torch.allclose(network(x.permute(0, 3, 1, 2)), expected, atol=1e-5)
        assert torch.allclose(network(x.permute(0, 3, 1, 2).flatten(1)), expected, atol=1e-5)
    else:
        assert torch.allclose(network(x.flatten(1)), expected, atol=1e-5)
        assert torch.allclose(network(x[:, None]), expected, atol=1e-5)


def test_pooling_before_relu_is_the_same_function():
    conv = nn.Conv2d(1, 8, 3, padding=1)
    x = torch.randn(2, 1, 28, 28)
    assert torch.equal(F.relu(F.max_pool2d(conv(x), 2)), F.max_pool2d(F.relu(conv(x)), 2))


def test_normalisation_is_tensorflows():
    """b = a / (1 + 0.001 / 9 * sum of the squares of the 9 channels around)^0.75."""
    a = torch.randn(2, 64, 3, 3) * 50
    padded = F.pad(a.pow(2), (0, 0, 0, 0, 4, 4))
    around = torch.stack([padded[:, c : c + 9].sum(1) for c in range(64)], 1)
    made = models.ResponseNorm()(a)
    assert torch.allclose(made, a / (1 + 0.001 / 9 * around) ** 0.75, rtol=1e-4)
    assert torch.allclose(made, nn.LocalResponseNorm(9, alpha=0.001, beta=0.75, k=1.0)(a), rtol=1e-4)
    assert sum(isinstance(layer, models.ResponseNorm) for layer in models.cifar_cnn()) == 2


@pytest.mark.slow
@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("kind", [torch.uint8, torch.int32, torch.int64])
def test_characters_in_the_next_out(name, kind):
    network = TEXTS[name]().eval()
    x = torch.randint(0, 80, (5, 80), generator=torch.Generator().manual_seed(0))
    assert network(x.to(kind)).shape == (5, 80)
    assert torch.equal(network(x.to(kind)), network(x))


@pytest.mark.slow
@pytest.mark.parametrize("name", TEXTS)
def test_the_next_character_depends_on_all_before_it(name):
    network = TEXTS[name]().eval()
    x = torch.zeros(3, 10, dtype=torch.long)
    x[1, 0], x[2, -1] = 5, 5
    one, first, last = network(x)
    assert not torch.equal(one, first)
    assert not torch.equal(one, last)


def test_dropout_is_on_every_layer_that_has_one():
    """Between the two LSTM layers, too, as when a study sets it."""
    made = models.char_lstm(dropout=0.3)
    assert (made.recurrent.dropout, made.dropout.p) == (0.3, 0.3)
    assert Task(partial(models.char_lstm, dropout=0.3)).hyperparameters["dropout"].default == 0.3


@pytest.mark.slow
def test_the_small_one_reads_the_last_characters_only():
    x = torch.randint(0, 80, (5, 80))
    network = models.small_lstm(last=7).eval()
    assert torch.equal(network(x), network(x[:, -7:]))
    assert not torch.equal(network(x), network(x[:, -6:]))


@pytest.mark.parametrize("build", [*(build for build, _ in IMAGES.values()), *TEXTS.values()])
def test_they_can_be_sent_to_workers(build):
    task = pickle.loads(pickle.dumps(Task(build)))
    assert task.size == Task(build).size
    assert ("dropout" in task.hyperparameters) == (task.size != 7_850)  # all but logistic regression tune dropout


@pytest.mark.parametrize("name", ["small_cnn", "cifar_cnn", "small_lstm"])
def test_training_is_the_same_for_the_same_seed(name):
    build = TEXTS[name] if name in TEXTS else IMAGES[name][0]
    x = torch.randint(0, 80, (16, 20)) if name in TEXTS else pixels(16, *IMAGES[name][1])
    task = Task(build)
    data, w, rows = task.prepare((x, torch.arange(16) % 10)), task.initial(0), np.arange(16)

    def gradient(seed: int) -> np.ndarray:
        with task.training(data, {"dropout": 0.3}, seed) as trainer:
            return trainer.gradient(w, rows).copy()

    assert np.array_equal(gradient(1), gradient(1))
    assert not np.array_equal(gradient(1), gradient(2))
    assert task.evaluate(w, data) == task.evaluate(w, data)


# McMahan's preparation of CIFAR-10.


def test_evaluation_takes_the_centre():
    x = pixels(2, 32, 32, 3)
    made = models.Crops(24).eval()(x)
    centre = x[:, 4:28, 4:28].permute(0, 3, 1, 2).double()
    for image, expected in zip(made, centre, strict=True):
        assert torch.allclose(image.double(), (expected - expected.mean()) / expected.std(correction=0), atol=1e-4)


@pytest.mark.slow
def test_training_takes_crops_from_everywhere_and_flips_half():
    """An image whose pixels are all different shows where a crop is from, and which way round."""
    crops, n = models.Crops(24).train(), 2000
    place = (torch.arange(32)[:, None] * 32 + torch.arange(32)).float() / 1024
    torch.manual_seed(0)
    made = crops(place.expand(n, 3, 32, 32))
    across = made[:, 0, 0, 1] - made[:, 0, 0, 0]
    down = made[:, 0, 1, 0] - made[:, 0, 0, 0]
    assert 0.45 < (across < 0).float().mean() < 0.55
    assert (down > 0).all()
    assert torch.allclose(made.mean((1, 2, 3)), torch.zeros(n), atol=1e-4)
    assert torch.allclose(made.std((1, 2, 3), correction=0), torch.ones(n), atol=1e-4)


def test_crops_are_whole_pieces_of_the_image(monkeypatch):
    monkeypatch.setattr(models, "_standardise", lambda x: x)
    place = (torch.arange(32)[:, None] * 32 + torch.arange(32)).float() / 1024
    torch.manual_seed(1)
    made = models.Crops(24).train()(place.expand(500, 3, 32, 32))
    contrasts = []
    for image in made[:, 0]:
        step = image[1, 0] - image[0, 0]  # 32 places, times the contrast
        contrast = float(step / 32 * 1024)
        assert 0.2 - 1e-3 <= contrast <= 1.8 + 1e-3
        contrasts.append(contrast)
        steps = image[:, 1:] - image[:, :-1]
        assert torch.allclose(steps.abs(), torch.full_like(steps, contrast / 1024), atol=1e-4)
    assert np.std(contrasts) > 0.3
    # Brightness and contrast move all pixels of an image together; the mean shows both the place and the brightness.
    means = made.mean((1, 2, 3)) - 0.5
    assert means.abs().max() < 63 / 255 + 4 * 33 / 1024 + 1e-3
    assert means.std() > 0.1


def test_a_blank_image_stays_finite():
    for mode in (True, False):
        made = models.Crops(24).train(mode)(torch.full((2, 32, 32, 3), 7, dtype=torch.uint8))
        assert torch.isfinite(made).all()


def test_images_differ_within_a_batch_and_repeat_with_the_generator():
    x = pixels(1, 32, 32, 3).expand(8, 32, 32, 3)
    crops = models.Crops(24).train()
    torch.manual_seed(3)
    first = crops(x)
    torch.manual_seed(3)
    assert torch.equal(crops(x), first)
    assert len({image.sum().item() for image in first.abs()}) == 8
