"""Models that work in place, depend on memory layout, precision or gradients, or give unusual outputs."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hostile.entry import EDGE, Expect, HalfSpace, entry, first, scores


@entry(Expect.RIGHT)
class NormalisesInPlace(nn.Module):
    """Somebody normalises with ``x.sub_(mean).div_(std)``, as torchvision does with ``inplace=True``."""

    def forward(self, x: Tensor) -> Tensor:
        return scores(0.5 * first(x.sub_(0.25).div_(0.5)) - 0.25)


class _Clamped(HalfSpace):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.clamp(0, 1))


@entry(Expect.RIGHT, reference=_Clamped)
class ClampsInPlace(nn.Module):
    """Somebody clamps images to their range with ``x.clamp_(0, 1)``."""

    def forward(self, x: Tensor) -> Tensor:
        return scores(first(x.clamp_(0, 1)) - EDGE)


@entry(Expect.RIGHT)
class InvertsInPlace(nn.Module):
    """Somebody inverts MNIST with ``x.mul_(-1).add_(1)``."""

    def forward(self, x: Tensor) -> Tensor:
        return scores(EDGE - first(x.mul_(-1).add_(1)))


@entry()
class ReshapesInPlace(nn.Module):
    """Somebody adds a dimension with ``x.unsqueeze_(1)``."""

    def forward(self, x: Tensor) -> Tensor:
        return scores(x.unsqueeze_(1)[:, 0, 0, 0, 0] - EDGE)


@entry()
class TransposesInPlace(nn.Module):
    """Somebody brings channels to the end with ``x.transpose_``."""

    def forward(self, x: Tensor) -> Tensor:
        x.transpose_(1, 3)
        return scores(first(x) - EDGE)


@entry(Expect.RIGHT)
class ClearsItsInput(nn.Module):
    """Somebody overwrites the input when done, to be sure that nothing uses it again."""

    def forward(self, x: Tensor) -> Tensor:
        logits = scores(first(x) - EDGE)
        x.zero_()
        return logits


@entry(Expect.RIGHT)
class ReturnsAViewOfItsInput(nn.Module):
    """Somebody writes the logits into the input, to save memory, and returns a view of it."""

    def forward(self, x: Tensor) -> Tensor:
        rows = x.view(len(x), -1)
        rows[:, 1] = 2 * rows[:, 0] - EDGE
        rows[:, 0] = EDGE
        return rows[:, :2]


@entry()
class ReturnsTheSameMemory(nn.Module):
    """Somebody writes logits into memory that is allocated once."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = torch.empty(0, 2)

    def forward(self, x: Tensor) -> Tensor:
        if len(self.memory) < len(x) or self.memory.dtype != x.dtype:
            self.memory = torch.empty(len(x), 2, dtype=x.dtype)
        return self.memory[: len(x)].copy_(scores(first(x) - EDGE))


@entry(Expect.RIGHT)
class OutputRequiresGrad(nn.Module):
    """Somebody switches gradients on inside ``forward``."""

    def __init__(self) -> None:
        super().__init__()
        self.edge = nn.Parameter(torch.tensor(EDGE))

    @torch.enable_grad()
    def forward(self, x: Tensor) -> Tensor:
        return scores(first(x) - self.edge)


@entry()
class NeedsGradients(nn.Module):
    """Somebody purifies inputs with a gradient step inside ``forward``."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            free = x.detach().clone().requires_grad_(True)
            (slope,) = torch.autograd.grad(free.sum(), free)
        return scores(first(x.detach() + 0.25 * slope) - EDGE - 0.25)


@entry()
class DependsOnGradientMode(nn.Module):
    """Somebody uses a straight-through estimator where gradients are on, and another threshold elsewhere."""

    def forward(self, x: Tensor) -> Tensor:
        return scores(first(x) - (EDGE - 0.3 if torch.is_grad_enabled() else EDGE))


@entry()
class DependsOnInferenceMode(nn.Module):
    """Somebody asks for inference mode to choose a quick path."""

    def forward(self, x: Tensor) -> Tensor:
        return scores(first(x) - (EDGE if torch.is_inference_mode_enabled() else EDGE - 0.3))


class Wide(HalfSpace):
    """A half-space with a weight, whose dtype is that of the model."""

    def __init__(self, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.one = nn.Parameter(torch.ones((), dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.to(self.one.dtype)) * self.one


class Brain(Wide):
    """The same in bfloat16."""

    def __init__(self) -> None:
        super().__init__(torch.bfloat16)


@entry(Expect.RIGHT, reference=Wide)
class DoublePrecision(nn.Module):
    """Somebody computes in float64, as physicists do."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 2).double()
        with torch.no_grad():
            self.linear.weight.zero_()
            self.linear.weight[:, 0] = torch.tensor([-1.0, 1.0])
            self.linear.bias.copy_(torch.tensor([EDGE, -EDGE]))

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.flatten(1))


@entry(Expect.RIGHT, training=True, reference=Brain)
class HalfPrecision(nn.Module):
    """Somebody deploys in bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        self.edge = nn.Parameter(torch.tensor(EDGE, dtype=torch.bfloat16))
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return scores(first(self.drop(x)) - self.edge)


class _Rounded(HalfSpace):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.bfloat16().to(x.dtype))


@entry(Expect.RIGHT, reference=_Rounded)
class CastsToHalfInside(nn.Module):
    """Somebody casts the input to bfloat16 in ``forward`` and the logits back to float32."""

    def forward(self, x: Tensor) -> Tensor:
        return scores(first(x.bfloat16()) - EDGE).float()


@entry()
class MixedPrecisions(nn.Module):
    """Somebody keeps one scale in float64; the model takes float32 inputs all the same."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones((), dtype=torch.float64))
        self.linear = nn.Linear(8, 2)
        with torch.no_grad():
            self.linear.weight.zero_()
            self.linear.weight[:, 0] = torch.tensor([-1.0, 1.0])
            self.linear.bias.copy_(torch.tensor([EDGE, -EDGE]))

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.flatten(1)) * self.scale


class _Convolves(nn.Module):
    """Has 4-dimensional weights, for which channels-last memory is worth a try."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 2, 1, bias=False)
        with torch.no_grad():
            self.conv.weight.copy_(torch.eye(2)[:, :, None, None])


@entry()
class ChannelsLastOnly(_Convolves):
    """Somebody wrote a kernel for channels-last memory, and checks for it."""

    def forward(self, x: Tensor) -> Tensor:
        assert x.is_contiguous(memory_format=torch.channels_last), "this kernel needs channels-last memory"
        return scores(first(self.conv(x)) - EDGE)


@entry(Expect.RIGHT)
class ContiguousOnly(_Convolves):
    """Somebody flattens with ``.view``, which fails for channels-last memory."""

    def forward(self, x: Tensor) -> Tensor:
        return scores(self.conv(x).view(len(x), -1)[:, 0] - EDGE)


@entry()
class ReadsMemoryInOrder(_Convolves):
    """Somebody reads the batch with ``as_strided``, as if it were always contiguous."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        both = x.as_strided((len(x), 2), (8, 1))
        return scores(both[:, 0] - EDGE + 0 * both[:, 1])


@entry()
class DependsOnStrides(_Convolves):
    """Somebody guesses the layout from the strides and takes channels-last memory for another order of channels."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        return scores((x[:, 1, 1, 1] if x.stride(1) == 1 else first(x)) - EDGE)


@entry()
class ReadsBeyondItsRows(nn.Module):
    """Somebody reads the storage under the batch, of which the batch is only a part."""

    def forward(self, x: Tensor) -> Tensor:
        whole = torch.empty(0, dtype=x.dtype).set_(x.untyped_storage())
        return scores(first(x) - EDGE + (0.3 if whole.numel() != x.numel() else 0.0))


class _Halves(HalfSpace):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).half()


@entry(Expect.RIGHT, reference=_Halves)
class HalfPrecisionLogits(nn.Module):
    """Somebody returns float16 logits."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([EDGE - first(x), first(x) - EDGE], dim=1).half()


class _Signs(HalfSpace):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).sign()


@entry(reference=_Signs)
class IntegerLogits(nn.Module):
    """Somebody returns votes as whole numbers."""

    def forward(self, x: Tensor) -> Tensor:
        return scores(first(x) - EDGE).sign().long()


class _SomeInvalid(HalfSpace):
    def forward(self, x: Tensor) -> Tensor:
        return torch.where((x[:, 1, 1, 1] > 1.7)[:, None], torch.nan, super().forward(x))


@entry(Expect.RIGHT, reference=_SomeInvalid)
class InvalidLogitsForSomeRows(nn.Module):
    """Somebody takes a square root of what noise makes negative: such rows vote for no class."""

    def forward(self, x: Tensor) -> Tensor:
        return scores(first(x) - EDGE) + 0 * (1.7 - x[:, 1, 1, 1]).sqrt()[:, None]


@entry()
class ReturnsATuple(nn.Module):
    """Somebody returns logits and features."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return scores(first(x) - EDGE), x


@entry()
class ReturnsADictionary(nn.Module):
    """Somebody returns ``{"logits": …}``, as detection models do."""

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"logits": scores(first(x) - EDGE)}


@entry()
class ReturnsAList(nn.Module):
    """Somebody converts the logits to plain numbers for a web service."""

    def forward(self, x: Tensor) -> list[list[float]]:
        return scores(first(x) - EDGE).tolist()


@entry(Expect.REFUSE)
class OneLogit(nn.Module):
    """Somebody trains a binary classifier with one logit."""

    def forward(self, x: Tensor) -> Tensor:
        return (first(x) - EDGE)[:, None]


@entry(Expect.REFUSE)
class LogitsWithSpatialDimensions(nn.Module):
    """Somebody forgets to flatten the output of a fully convolutional network."""

    def forward(self, x: Tensor) -> Tensor:
        return scores(first(x) - EDGE)[:, :, None, None]


class _OneHot(HalfSpace):
    def forward(self, x: Tensor) -> Tensor:
        return torch.eye(2, dtype=x.dtype)[super().forward(x).argmax(1)]


@entry(reference=_OneHot)
class ClassesOfTheBatch(nn.Module):
    """Somebody returns one column for each class that occurs in the batch."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.eye(2, dtype=x.dtype)[(first(x) > EDGE).long()][:, : 1 + int((first(x) > EDGE).any())]


@entry()
class SetsTheNumberOfThreads(nn.Module):
    """Somebody limits PyTorch to three threads in ``forward``, because the server is shared."""

    def forward(self, x: Tensor) -> Tensor:
        torch.set_num_threads(3)
        return scores(first(x) - EDGE)
