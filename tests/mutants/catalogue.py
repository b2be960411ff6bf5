"""Every planted fault there is."""

from tests.mutants.blob_faults import BLOB_FAULTS
from tests.mutants.bus_faults import BUS_FAULTS
from tests.mutants.clock_faults import CLOCK_FAULTS
from tests.mutants.definition_faults import DEFINITION_FAULTS
from tests.mutants.event_faults import EVENT_FAULTS
from tests.mutants.fault import Fault
from tests.mutants.key_faults import KEY_FAULTS
from tests.mutants.ledger_faults import LEDGER_FAULTS
from tests.mutants.output_faults import OUTPUT_FAULTS
from tests.mutants.queue_faults import QUEUE_FAULTS

FAULTS: tuple[Fault, ...] = (
    *LEDGER_FAULTS,
    *QUEUE_FAULTS,
    *EVENT_FAULTS,
    *BUS_FAULTS,
    *OUTPUT_FAULTS,
    *BLOB_FAULTS,
    *DEFINITION_FAULTS,
    *KEY_FAULTS,
    *CLOCK_FAULTS,
)
