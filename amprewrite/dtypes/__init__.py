"""Number formats and promotion rules, keyed by dtype name; imports no framework."""

from amprewrite.dtypes.arrays import promote_arrays
from amprewrite.dtypes.fits import is_lossless, same_kind, saturate, survives, ulp
from amprewrite.dtypes.formats import FORMATS, Format, format_of, is_float, itemsize
from amprewrite.dtypes.names import from_short_name, short_name
from amprewrite.dtypes.operands import Operand, ResultType
from amprewrite.dtypes.processor import Behaviour, Processor, Promoted, Rule
from amprewrite.dtypes.promotion import SYSTEMS, at_least, promote_types, result_type
from amprewrite.dtypes.rounding import quantise, saturating_cast, uniform_draws

__all__ = [
    "FORMATS",
    "SYSTEMS",
    "Behaviour",
    "Format",
    "Operand",
    "Processor",
    "Promoted",
    "ResultType",
    "Rule",
    "at_least",
    "format_of",
    "from_short_name",
    "is_float",
    "is_lossless",
    "itemsize",
    "promote_arrays",
    "promote_types",
    "quantise",
    "result_type",
    "same_kind",
    "saturate",
    "saturating_cast",
    "short_name",
    "survives",
    "ulp",
    "uniform_draws",
]
