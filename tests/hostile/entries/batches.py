"""Models whose answer for a row depends on the rows beside it, on its place, or on how many there are."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hostile.entry import EDGE, Expect, HalfSpace, entry, first, scores


@entry()
class BatchMeanVote(nn.Module):
    """Somebody averages over the augmented views of one image, and every batch is taken for the views of one image."""

    def forward(self, x: Tensor) -> Tensor:
        return scores((first(x) - EDGE).mean().expand(len(x)))


class _OneHot(HalfSpace):
    def forward(self, x: Tensor) -> Tensor:
        return torch.eye(2, dtype=x.dtype)[super().forward(x).argmax(1)]


@entry(reference=_OneHot)
class BatchMeanDecision(nn.Module):
    """Somebody does the same behind a service that returns the class alone, as a row of zeros and a one."""

    def forward(self, x: Tensor) -> Tensor:
        decided = int(first(x).mean() > EDGE)
        return torch.eye(2, dtype=x.dtype)[decided].expand(len(x), 2)


@entry(Expect.REFUSE)
class BatchMaxNormalised(nn.Module):
    """Somebody scales inputs with ``x / x.max()``, which is the maximum of the whole batch."""

    def forward(self, x: Tensor) -> Tensor:
        return scores(first(x) / x.max() - 0.2)


@entry(Expect.REFUSE)
class CentredOnTheBatch(nn.Module):
    """Somebody removes the mean of the batch from the features, as in contrastive learning."""

    def forward(self, x: Tensor) -> Tensor:
        return scores(first(x) - first(x).mean() + 0.4)


@entry(Expect.REFUSE)
class SoftmaxOverTheBatch(nn.Module):
    """Somebody writes ``softmax(0)`` where ``softmax(1)`` was meant."""

    def forward(self, x: Tensor) -> Tensor:
        return scores(2 * (first(x) - EDGE)).softmax(0)


@entry()
class SortsTheBatch(nn.Module):
    """Somebody sorts rows, as packed sequences need it, and forgets to undo it."""

    def forward(self, x: Tensor) -> Tensor:
        return scores(first(x).sort().values - EDGE)


@entry()
class ReversesTheBatch(nn.Module):
    """Somebody evaluates on flipped images and writes ``x.flip(0)``, which flips the order of the rows."""

    def forward(self, x: Tensor) -> Tensor:
        return scores(first(x.flip(0)) - EDGE)


@entry(Expect.REFUSE)
class ComparesWithTheFirstRow(nn.Module):
    """Somebody classifies by similarity to a prompt, which the training code puts in row 0."""

    def forward(self, x: Tensor) -> Tensor:
        return scores(first(x) - x[0, 0, 0, 0] + 0.3)


@entry(Expect.REFUSE)
class AveragesPairs(nn.Module):
    """Somebody doubles the batch for a flipped view and merges neighbouring rows, also where nothing was doubled."""

    def forward(self, x: Tensor) -> Tensor:
        side = first(x) - EDGE
        even = side[: len(side) // 2 * 2].reshape(-1, 2).mean(1).repeat_interleave(2)
        return scores(torch.cat([even, side[len(even) :]]))


@entry(Expect.REFUSE)
class NormalisesChunks(nn.Module):
    """Somebody uses ghost batch normalisation: the batch is split into chunks, each with its own mean."""

    def forward(self, x: Tensor) -> Tensor:
        parts = [first(part) - first(part).mean() + 0.4 for part in x.chunk(4)]
        return scores(torch.cat(parts))


@entry(Expect.REFUSE)
class ForgetsTheLastRows(nn.Module):
    """Somebody fills the output in steps of eight rows and loses what is left at the end."""

    def forward(self, x: Tensor) -> Tensor:
        side = torch.ones(len(x), dtype=x.dtype)
        for low in range(0, len(x) - 7, 8):
            side[low : low + 8] = first(x[low : low + 8]) - EDGE
        return scores(side)


@entry()
class LargeBatchesDiffer(nn.Module):
    """Somebody has a fast path for large batches that shares one statistic among all rows."""

    def forward(self, x: Tensor) -> Tensor:
        side = first(x) - EDGE
        return scores(side.mean().expand(len(x)) if len(x) > 64 else side)


@entry()
class SmallBatchesDiffer(nn.Module):
    """Somebody falls back to stored statistics where a batch is too small for statistics of its own."""

    def forward(self, x: Tensor) -> Tensor:
        side = first(x) - EDGE
        return scores(side - side.mean() + 0.4 if len(x) > 128 else side)


@entry()
class OddBatchesDiffer(nn.Module):
    """Somebody splits the batch in two halves and pads the shorter one with a copy of its last row, before mixing."""

    def forward(self, x: Tensor) -> Tensor:
        side = first(x) - EDGE
        return scores(side if len(x) % 2 == 0 or len(x) == 1 else side.roll(1).abs())


@entry()
class LongBatchesAreCut(nn.Module):
    """Somebody limits memory with ``x[:512]`` and repeats the answers to fill the batch."""

    def forward(self, x: Tensor) -> Tensor:
        logits = scores(first(x[:512]) - EDGE)
        return logits if len(x) <= 512 else logits[torch.arange(len(x)) % 512]


@entry()
class SqueezesTheOutput(nn.Module):
    """Somebody ends with ``.squeeze()``, which drops the batch dimension of a batch of one."""

    def forward(self, x: Tensor) -> Tensor:
        return scores(first(x) - EDGE).squeeze()


@entry()
class SqueezesTheInput(nn.Module):
    """Somebody begins with ``.squeeze()``, which makes two rows of a batch of one."""

    def forward(self, x: Tensor) -> Tensor:
        return scores(x.squeeze().flatten(1)[:, 0] - EDGE)


@entry()
class RaisesForOneRow(nn.Module):
    """Somebody checks the batch as BatchNorm does in training mode."""

    def forward(self, x: Tensor) -> Tensor:
        if len(x) == 1:
            raise ValueError("Expected more than 1 value per channel.")
        return scores(first(x) - EDGE)


@entry()
class FixedBatchSize(nn.Module):
    """Somebody exported the model for batches of 32."""

    def forward(self, x: Tensor) -> Tensor:
        assert len(x) == 32, "this engine was built for batches of 32"
        return scores(first(x) - EDGE)


@entry()
class AttendsAcrossRows(nn.Module):
    """Somebody feeds (batch, features) to attention that expects (sequence, features): rows attend to each other."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 1, bias=False)
        with torch.no_grad():
            self.attention.in_proj_weight.copy_(torch.eye(8).repeat(3, 1))
            self.attention.out_proj.weight.copy_(torch.eye(8))

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(1)
        return scores(self.attention(rows, rows, rows, need_weights=False)[0][:, 0] - EDGE)
