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


def saves(place, library):
    """What the saving threads do beside the tiles: opening on each rank, and removing old files."""
    error = stuck(place, library, "opening", 1, "open", ".h5.writing")
    runs.expect("rank 1" in error and "opening " in error, error)
    error = stuck(place, library, "removing", 0, "remove", ".h5")
    runs.expect("rank 0" in error and "removing old checkpoints from" in error, error)


def final_save(place, library):
    """The save that ends a run has a limit of its own, which is none of a save that a rollback waits for."""
    limit = "checkpoint.final_save_limit=2s"
    code = place.ended(place.start(place.preloaded(library, "train", "run.yaml", "name=final", "train.stop_after=1s",
                                                   "checkpoint.every=null", limit)), 60, "a slow last save")
    runs.expect(code == 1 and "the last save has not ended within 2 s (checkpoint.final_save_limit)" in place.output() and
                place.output().count("error: ") == 1, f"a slow last save: exit {code}: {place.output()}")
    runs.expect(not place.checkpoints("final"), "the disk was not slow")
    # Logits grow, so the first step that is judged is in trouble: at step 17, while step 15 is still being saved.
    trouble = ["stability.spike={window: 32, min_history: 16}", "stability.max_skips=0", "stability.lower_lr.times=0",
               "stability.per_head={logit_factor: 1.0001, logit_floor: 0.001}", "stability.rollback.times=1"]
    code = place.ended(place.start(place.preloaded(library, "train", "run.yaml", "name=back", "checkpoint.every=15", *trouble,
                                                   limit)), 90, "a rollback during a save")
    back = [event for event in place.lines("back", "events.jsonl") if event["event"] == "rolled_back"]
    runs.expect(code == 3 and len(back) == 1 and back[0]["to"].endswith("step-00000015.h5"),
                f"a rollback during a save: exit {code}: {place.output()}")


def waiting_for_data(place, library):
    """A rank that cannot open what it trains on, while the others make their groups, for which MPI waits without a limit."""
    environment = ["STUCK_RANK=1", "STUCK_CALL=open", "STUCK_NAME=corpus.bin"]
    code = place.ended(place.start(place.preloaded(library, "train", "run.yaml", "name=data",
                                                   f"parallel.time_limit={LIMIT_seconds}s", environment=environment)), 40,
                       "waiting for data")
    runs.expect(code == 1 and "without an answer of rank 1" in place.output(), f"exit {code}: {place.output()}")


def main():
    place = runs.Place(*sys.argv[1:3])
    slow, stuck_disk = sys.argv[3:]
    last_rows(place, stuck_disk)
    saves(place, stuck_disk)
    final_save(place, slow)
    waiting_for_data(place, stuck_disk)
    place.remove()


if __name__ == "__main__":
    main()
