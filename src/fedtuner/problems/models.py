"""Networks for the built-in problems: those of the paper, and small ones for quick studies.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017: char_lstm and
cifar_cnn (the network of TensorFlow's CIFAR-10 tutorial). Caldas et al., "LEAF", 2018: femnist_cnn; char_lstm predicts
one character from the last state, as there. Different here: PyTorch's initialisation, its two bias vectors per LSTM
gate, and a dropout layer, since the paper tunes dropout.

Images are bytes 0..255 or floats 0..1, in any of the shapes that ``Images`` lists; characters are whole numbers. Max
pooling precedes ReLU, which gives the same values with a quarter of the work.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def logistic(inputs: int, classes: int) -> nn.Module:
    """Return logistic regression."""
    return nn.Sequential(Floats(), nn.Flatten(), nn.Linear(inputs, classes))


def mlp(inputs: int, hidden: int, classes: int, dropout: float = 0.0) -> nn.Module:
    """Return a perceptron with one hidden layer and dropout after it."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(inputs, hidden), nn.ReLU(), nn.Dropout(dropout), nn.Linear(hidden, classes)
    )


def small_cnn(channels: int = 1, classes: int = 10, size: int = 28, dropout: float = 0.0) -> nn.Module:
    """Return a network of two small convolutions, for square images."""
    return nn.Sequential(
        Images(channels, size),
        *_convolution(channels, 8, 3),
        *_convolution(8, 16, 3),
        nn.Flatten(),
        nn.Dropout(dropout),
        nn.Linear(16 * (size // 4) ** 2, classes),
    )


def femnist_cnn(classes: int = 62, dropout: float = 0.0) -> nn.Module:
    """Return LEAF's network for FEMNIST: 6,603,710 parameters."""
    return nn.Sequential(
        Images(1, 28),
        *_convolution(1, 32, 5),
        *_convolution(32, 64, 5),
        nn.Flatten(),
        nn.Linear(7 * 7 * 64, 2048),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(2048, classes),
    )


def cifar_cnn(dropout: float = 0.0) -> nn.Module:
    """Return the network of TensorFlow's CIFAR-10 tutorial, which starts with random crops: 1,068,298 parameters."""
    pool = partial(nn.MaxPool2d, 3, stride=2, ceil_mode=True)  # 24 -> 12 -> 6, as with TensorFlow's padding
    return nn.Sequential(
        Crops(24),
        *(nn.Conv2d(3, 64, 5, padding=2), pool(), nn.ReLU(), ResponseNorm()),
        *(nn.Conv2d(64, 64, 5, padding=2), nn.ReLU(), ResponseNorm(), pool()),
        *(nn.Flatten(), nn.Linear(6 * 6 * 64, 384), nn.ReLU()),
        *(nn.Linear(384, 192), nn.ReLU(), nn.Dropout(dropout)),
        nn.Linear(192, 10),
    )


def char_lstm(vocabulary: int = 80, dropout: float = 0.0) -> nn.Module:
    """Return the character model: an embedding of 8, two LSTM layers of 256, the next character from the last state."""
    return NextCharacter(vocabulary, 8, partial(nn.LSTM, num_layers=2, dropout=dropout), 256, dropout)


def small_lstm(vocabulary: int = 80, hidden: int = 64, dropout: float = 0.0, last: int = 10) -> nn.Module:
    """Return a character model with one LSTM layer, which reads the ``last`` characters of a window only."""
    return NextCharacter(vocabulary, 8, nn.LSTM, hidden, dropout, last)


def _convolution(channels: int, filters: int, width: int) -> tuple[nn.Module, ...]:
    return nn.Conv2d(channels, filters, width, padding=width // 2), nn.MaxPool2d(2), nn.ReLU()


class NextCharacter(nn.Module):
    """Predicts the character after a window of characters, of which it reads the ``last`` ones, or all (0)."""

    def __init__(
        self, vocabulary: int, embedding: int, recurrent: Callable[..., nn.RNNBase], hidden: int, dropout: float,
        last: int = 0,
    ) -> None:  # fmt: skip
        super().__init__()
        self.last = last
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.recurrent = recurrent(embedding, hidden, batch_first=True)
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(hidden, vocabulary)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of the next character."""
        states, _ = self.recurrent(self.embedding(x[:, -self.last :].long()))
        logits: Tensor = self.output(self.dropout(states[:, -1]))
        return logits


class ResponseNorm(nn.Module):
    """Local response normalisation: each channel is divided by (1 + 0.001 * mean of the 9 squares around it)^0.75.

    The same as ``nn.LocalResponseNorm(9, 0.001)`` in half the time: a product with a band matrix sums the channels.
    """

    def forward(self, x: Tensor) -> Tensor:
        channels = torch.arange(x.shape[1], device=x.device)
        band = ((channels[:, None] - channels).abs() <= 4).to(x.dtype)[:, :, None, None] * (0.001 / 9)
        return x * (1 + F.conv2d(x * x, band)).pow(-0.75)


class Floats(nn.Module):
    """Bytes 0..255 become floats 0..1; floats stay as they are."""

    def forward(self, x: Tensor) -> Tensor:
        return x if x.is_floating_point() else x.float() / 255


class Images(Floats):
    """Square images as floats with the channels first, from (n, pixels), (n, h, w), (n, h, w, c) or (n, c, h, w)."""

    def __init__(self, channels: int, size: int) -> None:
        super().__init__()
        self.channels, self.size = channels, size

    def forward(self, x: Tensor) -> Tensor:
        x = super().forward(x)
        if x.ndim == 4 and x.shape[1:] == (self.size, self.size, self.channels):
            return x.permute(0, 3, 1, 2)
        return x.reshape(len(x), self.channels, self.size, self.size)


class Crops(Images):
    """The preprocessing of CIFAR-10's 32x32 images by McMahan et al., which is that of TensorFlow's tutorial.

    In training a random crop, a flip with probability 1/2, brightness shifted by up to 63 of 255, contrast scaled by
    0.2 to 1.8, all drawn per image from torch's generator; in evaluation the crop from the centre. In both each image
    is then standardised.
    """

    def __init__(self, crop: int, channels: int = 3, size: int = 32) -> None:
        super().__init__(channels, size)
        self.crop = crop

    def forward(self, x: Tensor) -> Tensor:
        x = super().forward(x)
        spare, n = self.size - self.crop, len(x)
        if not self.training:
            at = spare // 2
            return _standardise(x[:, :, at : at + self.crop, at : at + self.crop])
        inside = torch.arange(self.crop, device=x.device)
        down, right = torch.randint(spare + 1, (2, n, 1), device=x.device)
        flipped = torch.rand(n, 1, device=x.device) < 0.5
        rows, columns = down + inside, right + torch.where(flipped, inside.flip(0), inside)
        images = torch.arange(n, device=x.device)
        x = x.permute(0, 2, 3, 1)[images[:, None, None], rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
        brightness, contrast = torch.rand(2, n, 1, 1, 1, device=x.device)
        x = x + (brightness * 2 - 1) * (63 / 255)
        mean = x.mean((2, 3), keepdim=True)
        return _standardise((x - mean) * (0.2 + 1.6 * contrast) + mean)


def _standardise(x: Tensor) -> Tensor:
    """Return images of mean 0 and deviation 1. As in TensorFlow, a deviation is at least 1 / 255 / sqrt(values)."""
    mean = x.mean((1, 2, 3), keepdim=True)
    deviation = x.std((1, 2, 3), correction=0, keepdim=True)
    return (x - mean) / deviation.clamp_min(x[0].numel() ** -0.5 / 255)
