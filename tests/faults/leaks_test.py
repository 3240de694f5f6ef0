#!/usr/bin/env python3
"""leaks_test.py KEEL MPIRUN LIBLSAN

Ten steps with held-out text, saves, telemetry and TensorBoard under LeakSanitizer, on one rank and on two (CASES R76): nothing is
left behind but what MPI itself keeps, from its beginning, its end and the thread of its own.
"""
import subprocess
import sys

import runs

MPIS_OWN = "leak:MpiSession\nleak:event_base_loop\n"
FOUND, SKIPPED = 23, 77
KEYS = ["train.steps=10", "data.train=most", "data.valid=most-valid", "eval.every=5", "eval.sequences=8", "telemetry.every=5"]


def main(program, mpirun, library):
    place = runs.Place(program, mpirun)
    (place.path / "mpis_own").write_text(MPIS_OWN)
    subprocess.run([program, "tokenize", "text.txt", "--out", "most", "--valid", "0.1"], cwd=place.path, env=runs.ENVIRONMENT,
                   capture_output=True, check=True)
    # Stacks by the unwinder that needs no frame pointers: else a leak has no callers by which to tell whose it is.
    options = f"suppressions={place.path}/mpis_own:fast_unwind_on_malloc=0:exitcode={FOUND}"
    for ranks in 1, 2:
        command = [mpirun, "--oversubscribe", "--bind-to", "none", "-n", str(ranks), "env", f"LD_PRELOAD={library}",
                   f"LSAN_OPTIONS={options}", program, "train", "run.yaml", f"name=on_{ranks}", *KEYS]
        done = subprocess.run(command, cwd=place.path, env=runs.ENVIRONMENT, capture_output=True, text=True, timeout=300)
        if "LeakSanitizer has encountered a fatal error" in done.stderr:
            print("skipped: this machine lets no process look into another")
            sys.exit(SKIPPED)
        runs.expect(done.returncode == 0, f"{ranks} ranks: exit code {done.returncode}: {done.stderr[-4000:]}")
        runs.expect(place.last_step(f"on_{ranks}") == 10, f"{ranks} ranks: no ten steps")
        runs.expect("Suppressions used" in done.stderr, f"{ranks} ranks: LeakSanitizer has not run: {done.stderr}")
    place.remove()


if __name__ == "__main__":
    main(*sys.argv[1:])
