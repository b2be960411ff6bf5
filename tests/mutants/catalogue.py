"""All planted faults."""

from tests.mutants.agent_faults import AGENT_FAULTS
from tests.mutants.application_faults import APPLICATION_FAULTS
from tests.mutants.artifact_faults import ARTIFACT_FAULTS
from tests.mutants.backup_faults import BACKUP_FAULTS
from tests.mutants.blob_faults import BLOB_FAULTS
from tests.mutants.budget_faults import BUDGET_FAULTS
from tests.mutants.bus_faults import BUS_FAULTS
from tests.mutants.child_faults import CHILD_FAULTS
from tests.mutants.clock_faults import CLOCK_FAULTS
from tests.mutants.dead_letter_faults import DEAD_LETTER_FAULTS
from tests.mutants.definition_faults import DEFINITION_FAULTS
from tests.mutants.definition_file_faults import DEFINITION_FILE_FAULTS
from tests.mutants.event_faults import EVENT_FAULTS
from tests.mutants.fault import Fault
from tests.mutants.filter_faults import FILTER_FAULTS
from tests.mutants.key_faults import KEY_FAULTS
from tests.mutants.ledger_faults import LEDGER_FAULTS
from tests.mutants.operator_command_faults import OPERATOR_COMMAND_FAULTS
from tests.mutants.output_faults import OUTPUT_FAULTS
from tests.mutants.pause_faults import PAUSE_FAULTS
from tests.mutants.queue_faults import QUEUE_FAULTS
from tests.mutants.request_faults import REQUEST_FAULTS
from tests.mutants.resilience_faults import RESILIENCE_FAULTS
from tests.mutants.retention_faults import RETENTION_FAULTS
from tests.mutants.review_faults import REVIEW_FAULTS
from tests.mutants.rule_faults import RULE_FAULTS
from tests.mutants.settings_faults import SETTINGS_FAULTS
from tests.mutants.shared_budget_faults import SHARED_BUDGET_FAULTS
from tests.mutants.source_faults import SOURCE_FAULTS
from tests.mutants.supervision_faults import SUPERVISION_FAULTS
from tests.mutants.sweep_query_faults import SWEEP_QUERY_FAULTS
from tests.mutants.sweeper_faults import SWEEPER_FAULTS
from tests.mutants.turn_faults import TURN_FAULTS
from tests.mutants.worker_faults import WORKER_FAULTS
from tests.mutants.worker_registry_faults import WORKER_REGISTRY_FAULTS
from tests.mutants.write_lock_faults import WRITE_LOCK_FAULTS

FAULTS: tuple[Fault, ...] = (
    *LEDGER_FAULTS,
    *FILTER_FAULTS,
    *SWEEP_QUERY_FAULTS,
    *WRITE_LOCK_FAULTS,
    *QUEUE_FAULTS,
    *SOURCE_FAULTS,
    *TURN_FAULTS,
    *PAUSE_FAULTS,
    *EVENT_FAULTS,
    *BUS_FAULTS,
    *OUTPUT_FAULTS,
    *BLOB_FAULTS,
    *DEFINITION_FAULTS,
    *DEFINITION_FILE_FAULTS,
    *KEY_FAULTS,
    *SHARED_BUDGET_FAULTS,
    *BUDGET_FAULTS,
    *CLOCK_FAULTS,
    *SWEEPER_FAULTS,
    *RETENTION_FAULTS,
    *BACKUP_FAULTS,
    *DEAD_LETTER_FAULTS,
    *OPERATOR_COMMAND_FAULTS,
    *REVIEW_FAULTS,
    *WORKER_FAULTS,
    *ARTIFACT_FAULTS,
    *SUPERVISION_FAULTS,
    *WORKER_REGISTRY_FAULTS,
    *CHILD_FAULTS,
    *AGENT_FAULTS,
    *APPLICATION_FAULTS,
    *RESILIENCE_FAULTS,
    *REQUEST_FAULTS,
    *RULE_FAULTS,
    *SETTINGS_FAULTS,
)
