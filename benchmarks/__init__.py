"""Side-by-side measurements, paired in one run; results/ holds their JSON.

Plans weigh the default prices, so that they are the same on every machine; only
:mod:`benchmarks.calibration` weighs what it measures.
"""

import os

os.environ.setdefault("AMPREWRITE_PRICES", "default")
