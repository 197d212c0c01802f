"""Images of 8 × 8 pixels with one bright row or one bright column."""

import numpy as np

from smoothcert.data import ArrayDataset


def stripes(split):
    """Return the dataset of a split: class 0 has a bright row, class 1 a bright column."""
    rng = np.random.default_rng(0 if split == "train" else 1)
    images = rng.integers(0, 100, size=(200, 1, 8, 8), dtype=np.uint8)
    labels = np.arange(200) % 2
    for image, label in zip(images, labels, strict=True):
        place = rng.integers(8)
        (image[0].T if label else image[0])[place] = 255
    return ArrayDataset(images, labels, name="stripes", split=split, class_names=("row", "column"))
