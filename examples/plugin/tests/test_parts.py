"""Each part keeps its contract."""

from smoothcert_example.dataset import stripes
from smoothcert_example.method import Anchored
from smoothcert_example.model import BLUR, DIGITS_MLP
from smoothcert_example.noise import Laplace
from smoothcert_example.procedure import SecondTry

from smoothcert import testing


def test_noise():
    testing.check_noise(Laplace(0.5))


def test_procedure():
    testing.check_procedure(SecondTry(n=200, n0=40))


def test_method():
    testing.check_method(Anchored())
    testing.check_method(Anchored(), Laplace(0.5))


def test_models():
    testing.check_model(DIGITS_MLP)
    testing.check_denoiser(BLUR)


def test_dataset():
    for split in ("train", "test"):
        testing.check_dataset(stripes(split))
