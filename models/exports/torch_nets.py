"""Small PyTorch networks of the kinds that no library has ready, and wrappers that give plain tensors."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional


def text(length: int) -> tuple[Tensor, Tensor]:
    """Random ids of a vocabulary of 500, and a mask of ones."""
    ids = torch.randint(1, 500, (1, length))
    return ids, torch.ones_like(ids)


class Taking(nn.Module):  # type: ignore[misc]
    """A network that returns a dict: one of its tensors."""

    def __init__(self, model: nn.Module, key: str) -> None:
        super().__init__()
        self.model, self.key = model, key

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x)[self.key]


class First(nn.Module):  # type: ignore[misc]
    """The first result of a transformers model, for ids and a mask."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        return self.model(input_ids=ids, attention_mask=mask)[0]


class Detecting(nn.Module):  # type: ignore[misc]
    """A torchvision detector: boxes, scores and labels of one image."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        found = self.model(x)[0]
        return found["boxes"], found["scores"], found["labels"]


def c3d() -> nn.Module:
    """Tran et al. 2015: eight convolutions of 3x3x3, five pools, three dense layers, for 16 frames of 112x112."""
    layers: list[nn.Module] = []
    channels = 3
    for stage, widths in enumerate(((64,), (128,), (256, 256), (512, 512), (512, 512))):
        for width in widths:
            layers += [nn.Conv3d(channels, width, 3, padding=1), nn.ReLU()]
            nn.init.kaiming_normal_(layers[-2].weight, nonlinearity="relu")
            channels = width
        size = (1, 2, 2) if stage == 0 else (2, 2, 2)
        layers.append(nn.MaxPool3d(size, size, padding=(0, 1, 1) if stage == 4 else 0))
    dense = [nn.Linear(8192, 4096), nn.ReLU(), nn.Dropout(), nn.Linear(4096, 4096), nn.ReLU(), nn.Dropout()]
    return nn.Sequential(*layers, nn.Flatten(), *dense, nn.Linear(4096, 487))


def double_conv(into: int, out: int) -> nn.Module:
    """Two normalised 3-D convolutions."""
    parts: list[nn.Module] = []
    for channels in (into, out):
        parts += [nn.Conv3d(channels, out, 3, padding=1, bias=False), nn.BatchNorm3d(out), nn.ReLU()]
    return nn.Sequential(*parts)


class UNet3d(nn.Module):  # type: ignore[misc]
    """Cicek et al. 2016, of three levels and half the widths: transposed convolutions on the way up."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([double_conv(1, 16), double_conv(16, 32), double_conv(32, 64)])
        self.up = nn.ModuleList([nn.ConvTranspose3d(64, 32, 2, 2), nn.ConvTranspose3d(32, 16, 2, 2)])
        self.join = nn.ModuleList([double_conv(64, 32), double_conv(32, 16)])
        self.last = nn.Conv3d(16, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for level, block in enumerate(self.down):
            x = block(functional.max_pool3d(x, 2) if level else x)
            kept.append(x)
        for up, join, before in zip(self.up, self.join, kept[-2::-1], strict=True):
            x = join(torch.cat([before, up(x)], dim=1))
        return self.last(x)


class Crnn(nn.Module):  # type: ignore[misc]
    """Shi et al. 2015: convolutions to one row of 512 features, two bidirectional LSTMs, a letter for each column."""

    def __init__(self, letters: int = 37) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 1
        for width, pool in ((64, (2, 2)), (128, (2, 2)), (256, None), (256, (2, 1)), (512, None), (512, (2, 1))):
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
            layers += [nn.MaxPool2d(pool)] if pool else []
            channels = width
        self.features = nn.Sequential(*layers, nn.Conv2d(512, 512, 2), nn.ReLU())
        self.first = nn.LSTM(512, 256, bidirectional=True)
        self.second = nn.LSTM(512, 256, bidirectional=True)
        self.middle, self.last = nn.Linear(512, 512), nn.Linear(512, letters)

    def forward(self, x: Tensor) -> Tensor:
        x = self.features(x).squeeze(2).permute(2, 0, 1)
        x = self.middle(self.first(x)[0])
        return self.last(self.second(x)[0])


class Keywords(nn.Module):  # type: ignore[misc]
    """A keyword spotter: two GRUs over frames of filter banks, the last state to twelve words."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(40, 128, num_layers=2, batch_first=True)
        self.last = nn.Linear(128, 12)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.gru(x)[0][:, -1])


class Upscale(nn.Module):  # type: ignore[misc]
    """Dong et al. 2014 (SRCNN): cubic interpolation, then three convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 64, 9, padding=4),
            nn.ReLU(),
            nn.Conv2d(64, 32, 5, padding=2),
            nn.ReLU(),
            nn.Conv2d(32, 3, 5, padding=2),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.body(functional.interpolate(x, scale_factor=2.0, mode="bicubic", align_corners=False))


class Shrink(nn.Module):  # type: ignore[misc]
    """A convolution on a picture that was made smaller as image libraries do it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(functional.interpolate(x, size=(24, 24), mode="bicubic", antialias=True))


class Spatial(nn.Module):  # type: ignore[misc]
    """Jaderberg et al. 2015: a small net chooses an affine transformation of the image, then a classifier."""

    def __init__(self) -> None:
        super().__init__()
        small = [nn.Conv2d(1, 8, 7), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(8, 10, 5), nn.MaxPool2d(2), nn.ReLU()]
        self.place = nn.Sequential(*small, nn.Flatten(), nn.Linear(90, 32), nn.ReLU(), nn.Linear(32, 6))
        features = [nn.Conv2d(1, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
        self.body = nn.Sequential(*features, nn.Linear(16 * 144, 10))
        x, y = torch.meshgrid(torch.linspace(-1, 1, 28), torch.linspace(-1, 1, 28), indexing="xy")
        self.register_buffer("pixels", torch.stack([x, y, torch.ones(28, 28)], -1))

    def forward(self, x: Tensor) -> Tensor:
        theta = self.place(x).view(-1, 2, 3) + torch.tensor([[1.0, 0, 0], [0, 1, 0]])
        grid = (self.pixels.view(1, 784, 3) @ theta.transpose(1, 2)).view(-1, 28, 28, 2)
        return self.body(functional.grid_sample(x, grid, align_corners=False))


class SegNet(nn.Module):  # type: ignore[misc]
    """Badrinarayanan et al. 2015, of two levels: the pools' indices place the pixels on the way up."""

    def __init__(self) -> None:
        super().__init__()

        def block(into: int, out: int) -> nn.Module:
            return nn.Sequential(nn.Conv2d(into, out, 3, padding=1), nn.BatchNorm2d(out), nn.ReLU())

        self.down = nn.ModuleList([block(3, 32), block(32, 64)])
        self.up = nn.ModuleList([block(64, 32), block(32, 16)])
        self.last = nn.Conv2d(16, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        places = []
        for block in self.down:
            x, where = functional.max_pool2d(block(x), 2, 2, return_indices=True)
            places.append(where)
        for block, where in zip(self.up, reversed(places), strict=True):
            x = block(functional.max_unpool2d(x, where, 2, 2))
        return self.last(x)


class EinsumAttention(nn.Module):  # type: ignore[misc]
    """Multi-head attention whose products are Einsums."""

    def __init__(self, width: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        rows, length, width = x.shape
        q, k, v = (part.reshape(rows, length, self.heads, -1) for part in self.qkv(x).chunk(3, dim=-1))
        scores = torch.einsum("bihd,bjhd->bhij", q, k) / math.sqrt(width // self.heads)
        return self.out(torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), v).reshape(rows, length, width))


class CausalModel(nn.Module):  # type: ignore[misc]
    """A language model of one layer: positions count the words (CumSum), a triangle hides later words (Trilu).

    Words are those that the mask has 1 for, as in OPT; without a mask those that aren't 0, as in RoBERTa.
    """

    def __init__(self, width: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.words, self.places = nn.Embedding(500, width), nn.Embedding(66, width)
        self.qkv, self.out, self.last = nn.Linear(width, 3 * width), nn.Linear(width, width), nn.Linear(width, 500)
        self.norm = nn.LayerNorm(width)

    def forward(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        mask = ids.ne(0).int() if mask is None else mask
        x = self.words(ids) + self.places(torch.cumsum(mask, dim=1) * mask + 1)
        rows, length, width = x.shape
        shape = (rows, length, self.heads, width // self.heads)
        q, k, v = (part.reshape(shape).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, dim=-1))
        scores = q @ k.transpose(2, 3) / math.sqrt(shape[-1])
        hidden = torch.triu(torch.full_like(scores, -1e4), diagonal=1)
        mixed = ((scores + hidden).softmax(-1) @ v).transpose(1, 2).reshape(rows, length, width)
        return self.last(x + self.out(mixed))


class Bag(nn.Module):  # type: ignore[misc]
    """fastText's classifier: the mean of the words' embeddings, and one dense layer."""

    def __init__(self) -> None:
        super().__init__()
        self.bag, self.last = nn.EmbeddingBag(500, 32, mode="mean"), nn.Linear(32, 4)

    def forward(self, ids: Tensor) -> Tensor:
        return self.last(self.bag(ids))
