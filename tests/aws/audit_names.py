"""Where the auditor finds an installation of the tests."""

from pathlib import Path

from longshore.adapters.aws.names import Names
from longshore.audit.dynamo_reader import InstallationNames


def audit_names_in(folder: Path) -> InstallationNames:
    """The tables of the installation of a folder."""
    stage = (folder / "stage").read_text()
    names = Names(stage=stage, bucket=f"longshore-{stage}-blobs")
    return InstallationNames(names.ledger, names.events, names.output, names.bucket)
