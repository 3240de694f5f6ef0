#!/usr/bin/env python3
"""odd_machines_test.py KEEL MPIRUN CLOCK_SHIFT SLOW_DISK NO_LOCKS

Machines as they are: clocks 90 s apart, a rank that comes 20 s late, locks held elsewhere, a second run in the same directory,
a disk that is slow, a rank that hangs beside it, a file system without locks. The last three arguments are libraries to
preload; without them, a disk that fills up.
"""
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time

import runs

NOT_ALLOWED = 77  # CMakeLists.txt calls that a skip


def clocks_apart(place, clock_shift):
    """One directory, one curve, and a resume: nothing is decided by each rank's own clock."""
    overrides = ["train", "run.yaml", "name=clocks"]
    for steps in (10, 20):
        command = [place.mpirun, "--oversubscribe", "--bind-to", "none", "-n", "1", place.program, *overrides,
                   f"train.steps={steps}", "checkpoint.final=true", ":", "-n", "1", "env", f"LD_PRELOAD={clock_shift}",
                   place.program, *overrides, f"train.steps={steps}", "checkpoint.final=true"]
        code = place.ended(place.start(command), 60, "clocks apart")
        runs.expect(code == 0, f"clocks apart: exit {code}: {place.output()}")
    runs.expect([path.name for path in (place.path / "runs").iterdir()] == ["clocks"], "more than one directory")
    runs.expect(place.last_step("clocks") == 20 and "at step 10" in place.output(), "the run did not go on")


def late_rank(place):
    late = 20
    begin = time.time()
    overrides = ["train", "run.yaml", "name=late", "train.steps=5"]
    command = [place.mpirun, "--oversubscribe", "--bind-to", "none", "-n", "1", place.program, *overrides, ":", "-n", "1", "sh",
               "-c", f"sleep {late}; exec {place.program} {' '.join(overrides)}"]
    code = place.ended(place.start(command), 90, "a late rank")
    runs.expect(code == 0, f"a late rank: exit {code}: {place.output()}")
    runs.expect(time.time() - begin >= late, "nobody was late")


def locks_elsewhere(place):
    """Checkpoints are read and written without locks, so somebody else's do not matter."""
    newest = place.checkpoints("clocks")[-1]
    with open(newest, "r+b") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        code = place.ended(place.start(place.command(2, "name=clocks", "train.steps=25")), 60, "a lock held elsewhere")
        runs.expect(code == 0, f"a lock held elsewhere: exit {code}: {place.output()}")


def second_run(place):
    """It is refused before it looks at anything that the first one may be about to write."""
    first = place.start(place.command(1, "name=shared"))
    runs.expect(runs.wait_for(lambda: place.last_step("shared") > 2, 60, first, "progress"), place.output())
    (place.path / "runs/shared/recovery.json").write_text("half of wh")
    second = subprocess.run(place.command(2, "name=shared"), cwd=place.path, env=runs.ENVIRONMENT, capture_output=True,
                            text=True, timeout=60)
    runs.expect(second.returncode == 2 and "another run works in this directory" in second.stderr, second.stderr)
    runs.expect(first.poll() is None, "the first run was disturbed")
    first.kill()
    place.ended(first, 10, "the first run")


def slow_disk(place, library):
    """Training goes on beside a save that takes long, also past a step that brings arrays of telemetry which the file does not
    have yet, and its ranks wait for each other no longer than usual."""
    code = place.ended(place.start(place.command(2, "name=slow", "train.steps=5")), 60, "before the disk is slow")
    runs.expect(code == 0, f"exit {code}: {place.output()}")
    begin = time.time()
    code = place.ended(place.start(place.preloaded(library, "train", "run.yaml", "name=slow", "train.steps=120",
                                            "checkpoint.every=50", "telemetry.every=60", "parallel.time_limit=3s")), 120,
                      "a slow disk")
    runs.expect(code == 0, f"a slow disk: exit {code}: {place.output()}")
    runs.expect(time.time() - begin > 8, f"the disk was not slow: {place.output()}")
    runs.expect([path.name for path in place.checkpoints("slow")][-1] == "step-00000100.h5", place.output())


def hang_while_saving(place, library):
    """A rank that hangs while others wait for a save is missed as soon as in a step."""
    process = place.start(place.preloaded(library, "train", "run.yaml", "name=hang", "checkpoint.every=50",
                                    "parallel.time_limit=3s"))

    def waits():  # at a step that is to be saved, for the save before
        step = place.last_step("hang")
        time.sleep(1)
        return step >= 100 and step % 50 == 0 and place.last_step("hang") == step

    runs.expect(runs.wait_for(waits, 60, process, "wait for a save"), place.output())
    os.kill(runs.ranks_of(process)[-1], signal.SIGSTOP)
    code = place.ended(process, 40, "a rank hangs while saving")
    runs.expect(code not in (0, 2) and "waiting for a save" in place.output() and
                "without an answer of rank 1" in place.output() and place.output().count("error: ") == 1,
                f"exit {code}: {place.output()}")


def no_locks(place, library):
    """Groups and tasks of a job array need locks to share cells: without them all end before one has begun. One group alone is
    warned, as a run is."""
    (place.path / "grid.yaml").write_text((place.path / "run.yaml").read_text() + """
ablate:
  arms: {none: {model.attention.qk_norm.kind: none}, rms: {model.attention.qk_norm.kind: rms}}
  seeds: [1]
  baseline: none
""")
    for ending in ("bin", "idx", "json"):
        shutil.copy(place.path / f"corpus.{ending}", place.path / f"held_out.{ending}")
    for beside in ({"arguments": ["--groups", "2"]}, {"environment": ["SLURM_ARRAY_TASK_ID=3"]}):
        command = place.preloaded(library, "ablate", "grid.yaml", "data.valid=held_out", "train.steps=5",
                                  *beside.get("arguments", []), environment=beside.get("environment", []))
        code = place.ended(place.start(command), 60, "no locks")
        runs.expect(code == 2 and "has no locks" in place.output(), f"no locks: {beside}: exit {code}: {place.output()}")
    code = place.ended(place.start(place.preloaded(library, "ablate", "grid.yaml", "data.valid=held_out", "train.steps=5")), 60,
                       "one group without locks")
    runs.expect(code == 0 and "nothing protects" in place.output() and "2 of 2 cells finished" in place.output(),
                f"exit {code}: {place.output()}")
    code = place.ended(place.start(place.preloaded(library, "train", "run.yaml", "name=unlocked", "train.steps=5")), 60,
                      "one run without locks")
    runs.expect(code == 0 and "nothing protects" in place.output(), f"exit {code}: {place.output()}")


def full_disk(place):
    disk = place.path / "runs/full"
    disk.mkdir(parents=True)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=20m", "tmpfs", disk], capture_output=True).returncode != 0:
        print("SKIPPED: this process may not mount")
        sys.exit(NOT_ALLOWED)
    try:
        code = place.ended(place.start(place.command(2, "name=full", "train.steps=10")), 60, "before the disk is full")
        runs.expect(code == 0, f"exit {code}: {place.output()}")
        before = {path: path.read_bytes() for path in place.checkpoints("full")}
        filler = disk / "filler"
        with open(filler, "wb") as file:
            left = os.statvfs(disk)
            file.write(bytes(left.f_bavail * left.f_frsize - 150_000))  # a save needs more
        code = place.ended(place.start(place.command(2, "name=full", "train.steps=1000")), 120, "a full disk")
        runs.expect(code == 1 and "free some space on that disk" in place.output(), f"exit {code}: {place.output()}")
        failed = [event["failed_in_a_row"] for event in place.lines("full", "events.jsonl") if event["event"] == "save_failed"]
        runs.expect(failed == [1, 2, 3] and 25 <= place.last_step("full") <= 30,
                    f"saves of steps 15, 20 and 25 fail, not {failed} up to step {place.last_step('full')}")
        runs.expect(all(path.read_bytes() == content for path, content in before.items()), "a checkpoint was touched")
        filler.unlink()
        code = place.ended(place.start(place.command(2, "name=full", "train.steps=20")), 60, "after the disk was full")
        runs.expect(code == 0, f"exit {code}: {place.output()}")
    finally:
        subprocess.run(["umount", "-l", disk], check=False)


def main():
    place = runs.Place(*sys.argv[1:3])
    if len(sys.argv) == 3:
        full_disk(place)
    else:
        clock_shift, slow, unlocked = sys.argv[3:]
        clocks_apart(place, clock_shift)
        late_rank(place)
        locks_elsewhere(place)
        second_run(place)
        slow_disk(place, slow)
        hang_while_saving(place, slow)
        no_locks(place, unlocked)
    place.remove()


if __name__ == "__main__":
    main()
