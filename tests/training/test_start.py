"""A training that begins with another recipe's weights."""

from __future__ import annotations

import pytest
import torch

from smoothcert.models import load_model
from smoothcert.training.recipes import load_recipe
from smoothcert.training.run import train_recipe
from smoothcert.types import UsageError

BRIEF = ["epochs=1", "holdout=0"]


def recipe(*changes: str):
    return load_recipe("digits-gaussian-0.25-quick", [*BRIEF, *changes])


def find(name: str):
    return load_recipe(name, BRIEF)


def weights(folder):
    return torch.cat([tensor.flatten() for tensor in load_model(folder / "last.safetensors").state_dict().values()])


def test_the_first_weights_are_those_of_the_other_recipe(tmp_path):
    still = ["method.name=consistency", "rate=1e-12", "weight_decay=0.0"]
    train_recipe(recipe("start=digits-gaussian-0.25-quick", *still), tmp_path / "second", find=find, progress=False)
    train_recipe(recipe(*still), tmp_path / "fresh", progress=False)
    first = weights(tmp_path / "digits-gaussian-0.25-quick")
    assert torch.allclose(weights(tmp_path / "second"), first, atol=1e-6)
    assert not torch.allclose(weights(tmp_path / "fresh"), first, atol=1e-2)


def test_a_folder_that_began_elsewhere_is_not_continued(tmp_path):
    train_recipe(recipe(), tmp_path / "model", progress=False)
    with pytest.raises(UsageError, match="start"):
        train_recipe(recipe("start=digits-gaussian-0.25-quick"), tmp_path / "model", find=find, progress=False)


def test_refusals(tmp_path):
    with pytest.raises(UsageError, match=r"did you mean 'digits-gaussian-0.25-quick'"):
        recipe("start=digits-gausian-0.25-quick")
    with pytest.raises(UsageError, match=r"cannot start from mnist-gaussian-0.50-quick"):
        train_recipe(recipe("start=mnist-gaussian-0.50-quick"), tmp_path / "model", progress=False)
    assert not (tmp_path / "model").exists()
