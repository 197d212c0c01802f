"""Datasets: named ones read from disk, ``.npz`` files and image folders; see :func:`load` and :func:`fetch`."""

from smoothcert.data.base import ArrayDataset, Dataset
from smoothcert.data.fetch import fetch
from smoothcert.data.folder import ImageFolder
from smoothcert.data.layout import default_root
from smoothcert.data.loading import available, load
from smoothcert.data.registry import DATASETS, DatasetInfo, RemoteFile

__all__ = [
    "DATASETS",
    "ArrayDataset",
    "Dataset",
    "DatasetInfo",
    "ImageFolder",
    "RemoteFile",
    "available",
    "default_root",
    "fetch",
    "load",
]
