"""Apply a plan: write it, reconcile dtypes of kernels, round to 8 bits, check."""

from amprewrite.frameworks.torch_fx.rewrite.quantise_contractions import (
    quantise_contractions,
)
from amprewrite.frameworks.torch_fx.rewrite.read import Reading
from amprewrite.frameworks.torch_fx.rewrite.reconcile_dtypes import reconcile
from amprewrite.frameworks.torch_fx.rewrite.write import write
from amprewrite.frameworks.torch_fx.rewrite.write_order import check_writes, contents
from amprewrite.plan import Plan


def rewrite(reading: Reading, plan: Plan) -> Plan:
    """Rewrite the module of ``reading`` in place by ``plan``.

    Returns:
        The plan, with a warning for each op whose kernel differs from it.

    Raises:
        PlanMismatchError: The plan was made for another program.
        GraphError: An op would read a value from before an in-place write to it.
    """
    before = contents(reading)
    write(reading, plan)
    reconciled = plan.with_warnings(*reconcile(reading, plan))
    quantise_contractions(reading, plan)
    check_writes(reading, before)
    return reconciled
