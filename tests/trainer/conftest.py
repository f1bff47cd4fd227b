"""Trainer tests import their helpers (toy, frozen) by name, also when run as scripts by a launcher."""

import gc
import sys
from pathlib import Path

import torch
import trl.trainer.grpo_trainer  # noqa: F401  (imported before the freeze below)

sys.path.insert(0, str(Path(__file__).parent))

# The models are tiny: threads only cost.
torch.set_num_threads(1)

# Every training run ends with a full garbage collection: a quarter of a second for what the imports left alone.
gc.freeze()
