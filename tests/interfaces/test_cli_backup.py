"""``longshore backup`` and ``longshore restore``: answers, exit codes, and what is left."""

from collections.abc import Callable

from longshore.interfaces.cli.exit_codes import ExitCode
from tests.interfaces.command_line import Cli, CommandResult

Inside = Callable[..., CommandResult]


def test_a_backup_is_restored_and_clean(cli: Cli, inside: Inside) -> None:
    data, target = str(cli.folder / ".longshore"), str(cli.folder / "monday.tar.zst")
    restored = str(cli.folder / "restored")
    job = cli.folder / "job.json"
    job.write_text('{"tasks": [{"taskId": "a", "name": "command", "input": {"argv": ["true"]}}]}')
    inside("submit", str(job), "--data-dir", data)

    backup = inside("backup", target, "--data-dir", data, "-o", "json")
    again = inside("backup", target, "--data-dir", data)
    restore = inside("restore", target, "--data-dir", restored, "-o", "json")
    onto_data = inside("restore", target, "--data-dir", data)
    doctor = inside("doctor", "--audit", "--data-dir", restored, "-o", "json")

    assert backup.code == restore.code == doctor.code == ExitCode.OK
    assert (backup.json["jobs"], backup.json["tasks"], backup.json["backup"]) == (1, 1, target)
    assert restore.json["dataFolder"] == restored
    assert restore.json["backup"]["createdAt"] == backup.json["createdAt"]
    assert again.code == onto_data.code == ExitCode.USAGE
    assert "exists already" in again.err
    assert "is not empty, and a restore replaces nothing" in onto_data.err


def test_a_backup_without_a_store_or_of_a_damaged_one_is_refused(cli: Cli, inside: Inside) -> None:
    data, target = cli.folder / ".longshore", str(cli.folder / "backup")
    missing = inside("backup", target, "--data-dir", str(data))
    data.mkdir()
    (data / "longshore.db").write_text("not a database" * 1_000)
    damaged = inside("backup", target, "--data-dir", str(data))
    no_backup = inside("restore", str(data), "--data-dir", target)

    assert missing.code == ExitCode.NOT_FOUND
    assert damaged.code == no_backup.code == ExitCode.BACKEND
    assert "docs/howto/back-up-and-restore.md" in damaged.err
    assert "it has no manifest.json" in no_backup.err


def test_files_that_are_missing_make_the_exit_code_1(cli: Cli, inside: Inside) -> None:
    data, target = str(cli.folder / ".longshore"), str(cli.folder / "backup")
    job = cli.folder / "job.json"
    text = "x" * 100_000
    job.write_text(
        f'{{"tasks": [{{"taskId": "a", "name": "command", "input": {{"argv": ["{text}"]}}}}]}}'
    )
    inside("submit", str(job), "--data-dir", data)
    (file,) = (cli.folder / ".longshore").glob("blobs/*/*")
    file.unlink()

    backup = inside("backup", target, "--data-dir", data)

    assert backup.code == ExitCode.FAILED
    assert "1 file of results or artifacts are missing" in backup.err
