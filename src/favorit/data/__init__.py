"""Data sets, from files to batches: `load_dataset`, `split` and `Loader`."""

from favorit.data.arrays import as_dataset, build_dataset
from favorit.data.augment import AUGMENTS, Augment, build_augment
from favorit.data.datasets import CARDS, DATASETS, load_dataset, read_spec, with_absolute_path
from favorit.data.image_files import find_images, read_image
from favorit.data.images import DataSet, Images
from favorit.data.loader import Batch, Loader
from favorit.data.preprocess import PREPROCESSES, Preprocess, build_preprocess
from favorit.data.sources import data_directory, fetch, present
from favorit.data.splits import split

__all__ = [
    "AUGMENTS",
    "CARDS",
    "DATASETS",
    "PREPROCESSES",
    "Augment",
    "Batch",
    "DataSet",
    "Images",
    "Loader",
    "Preprocess",
    "as_dataset",
    "build_augment",
    "build_dataset",
    "build_preprocess",
    "data_directory",
    "fetch",
    "find_images",
    "load_dataset",
    "present",
    "read_image",
    "read_spec",
    "split",
    "with_absolute_path",
]
