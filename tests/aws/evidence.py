"""Where the auditor finds an installation of the tests."""

from pathlib import Path

from longshore.adapters.aws.names import Names
from longshore.testing.auditing.from_dynamo import Place


def place_in(folder: Path) -> Place:
    """The tables of the installation of a folder."""
    stage = (folder / "stage").read_text()
    names = Names(stage=stage, bucket=f"longshore-{stage}-blobs")
    return Place(names.ledger, names.events, names.output, names.bucket)
