"""How each operator carries errors, a file a family; importing them registers the rules."""

from trnrt.validate.rules import elementwise as elementwise
from trnrt.validate.rules import movement as movement
from trnrt.validate.rules import normalize as normalize
from trnrt.validate.rules import pipelines as pipelines
from trnrt.validate.rules import sums as sums
