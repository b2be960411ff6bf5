"""Submit a DAG of commands from a YAML file and run it, from a Python program.

    python examples/submit_a_file.py

The same from the command line: `longshore submit examples/nightly-report.yaml --wait`.
"""

from pathlib import Path

import yaml

import longshore

FILE = Path(__file__).with_name("nightly-report.yaml")

if __name__ == "__main__":
    with longshore.Client(worker=True) as client:
        job = client.submit(yaml.safe_load(FILE.read_text()))
        for chunk in job.output():
            print(f"{chunk.key}: {chunk.text}", end="")
        status = job.status()
    print(f"{status.name}: {status.state}, {status.completed} of {status.total} tasks completed")
