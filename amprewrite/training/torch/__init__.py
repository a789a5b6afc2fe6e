"""Training of torch models in mixed precision: the loss scale, and low weights.

Master weights need no code: a module converted for training has the float32 parameters
of the model, the same objects, and casts them as they are used.
"""

from amprewrite.training.delayed import DelayedRule
from amprewrite.training.torch.delayed import DelayedLinear, delay_scales, saturated
from amprewrite.training.torch.low_weights import LostUpdates, LowWeights
from amprewrite.training.torch.scaler import GradScaler
from amprewrite.training.torch.update_watch import UpdateWatch, lost_updates

__all__ = [
    "DelayedLinear",
    "DelayedRule",
    "GradScaler",
    "LostUpdates",
    "LowWeights",
    "UpdateWatch",
    "delay_scales",
    "lost_updates",
    "saturated",
]
