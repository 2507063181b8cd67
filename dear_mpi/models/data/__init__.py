"""Where training examples come from: scikit-learn's digits, a user's ``.npz``, a user's text; sharded over ranks."""

from dear_mpi.models.data.batches import Batches
from dear_mpi.models.data.dataset import Dataset, Examples
from dear_mpi.models.data.load import load_data

__all__ = ["Batches", "Dataset", "Examples", "load_data"]
