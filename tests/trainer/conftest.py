"""Trainer tests import their helpers (toy, frozen) by name, also when run as scripts by a launcher."""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))

# The models are tiny: threads only cost.
torch.set_num_threads(1)
