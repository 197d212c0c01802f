"""Datasets: named ones read from disk, ``.npz`` files and image folders; see :func:`load` and :func:`fetch`."""

from smoothcert.data.base import ArrayDataset, Dataset
from smoothcert.data.corruptions import CORRUPTIONS, Corrupted
from smoothcert.data.download import fetch
from smoothcert.data.folder import ImageFolder
from smoothcert.data.loading import available, load
from smoothcert.data.registry import DATASETS, IDENTITY, DatasetInfo, RemoteFile, default_root
from smoothcert.data.suites import SuiteSet, load_suite

__all__ = [
    "CORRUPTIONS",
    "DATASETS",
    "IDENTITY",
    "ArrayDataset",
    "Corrupted",
    "Dataset",
    "DatasetInfo",
    "ImageFolder",
    "RemoteFile",
    "SuiteSet",
    "available",
    "default_root",
    "fetch",
    "load",
    "load_suite",
]
