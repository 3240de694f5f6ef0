#!/usr/bin/env python3
"""disks_test.py KEEL MPIRUN SLOW_DISK STUCK_DISK

Disks that do not answer, or late: whatever a rank waits for there is limited, and its end names the rank and what it did. The
last two arguments are libraries to preload.
"""
import sys

import runs

LIMIT_seconds = 3


def stuck(place, library, name, rank, call, path, *overrides):
    """The one line of error of a run whose rank does not come back from that call."""
    environment = [f"STUCK_RANK={rank}", f"STUCK_CALL={call}", f"STUCK_NAME={path}"]
    command = place.preloaded(library, "train", "run.yaml", f"name={name}", f"checkpoint.time_limit={LIMIT_seconds}s", *overrides,
                              environment=environment)
    code = place.ended(place.start(command), 60, name)
    errors = [line for line in place.output().splitlines() if "error: " in line]
    runs.expect(code == 1 and len(errors) == 1 and f"has not ended within {LIMIT_seconds} s" in errors[0],
                f"{name}: exit {code}: {place.output()}")
    return errors[0]


def last_rows(place, library):
    error = stuck(place, library, "rows", 0, "open", "telemetry.h5", "train.steps=10", "checkpoint.every=null")
    runs.expect("rank 0" in error and "writing the last rows of" in error, error)


def main():
    place = runs.Place(*sys.argv[1:3])
    slow, stuck_disk = sys.argv[3:]
    last_rows(place, stuck_disk)
    place.remove()


if __name__ == "__main__":
    main()
