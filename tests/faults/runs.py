"""Runs of the program under mpirun that are interfered with: what the tests of faults share."""
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import time

CONFIG = """
precision: fp32
model: {kind: decoder, hidden: 32, layers: 2, ffn: 64, attention: {heads: 4, kv_heads: 2}}
data: {train: corpus, sequence_length: 32}
batch: {sequences: 8, micro_sequences: 2}
optimizer: {lr: 3e-3}
schedule: {kind: constant, warmup_steps: 5}
train: {steps: 1000000}
eval: {every: null}
checkpoint: {every: 5, keep: 3, final: false}
telemetry: {every: 10}
"""
ENVIRONMENT = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMP_NUM_THREADS": "1",
               "OMPI_MCA_mpi_yield_when_idle": "1"}


def fail(message):
    sys.exit(f"failed: {message}")


def expect(condition, message):
    if not condition:
        fail(message)


class Place:
    """A directory with a corpus and a config, and the runs in it."""

    def __init__(self, program, mpirun):
        self.program, self.mpirun = program, mpirun
        self.path = pathlib.Path(tempfile.mkdtemp(prefix="keel_faults_"))
        words = ["the ", "norm ", "of a ", "query ", "and of ", "its key ", "bounds ", "every logit. ", "\n"]
        order = random.Random(7)
        (self.path / "text.txt").write_text("".join(order.choice(words) for _ in range(6000)))
        (self.path / "run.yaml").write_text(CONFIG)
        done = subprocess.run([program, "tokenize", "text.txt", "--out", "corpus"], cwd=self.path, env=ENVIRONMENT,
                              capture_output=True, text=True)
        expect(done.returncode == 0, f"tokenize: {done.stderr}")

    def remove(self):
        shutil.rmtree(self.path, ignore_errors=True)

    def command(self, ranks, *overrides, launcher=()):
        return [self.mpirun, *(launcher or ("--oversubscribe", "--bind-to", "none")), "-n", str(ranks), self.program, "train",
                "run.yaml", *overrides]

    def preloaded(self, library, *arguments, environment=()):
        """A command of two ranks with a library before the system's own."""
        return [self.mpirun, "--oversubscribe", "--bind-to", "none", "-n", "2", "env", f"LD_PRELOAD={library}", *environment,
                self.program, *arguments]

    def start(self, command):
        """The process, its output going to a file."""
        output = open(self.path / "output.txt", "w+")
        return subprocess.Popen(command, cwd=self.path, env=ENVIRONMENT, stdout=output, stderr=output)

    def ended(self, process, seconds, what):
        """The exit code of a process that must end in time."""
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            fail(f"{what}: not ended within {seconds} s: {self.output()}")

    def output(self):
        return (self.path / "output.txt").read_text(errors="replace")

    def lines(self, name, file="metrics.jsonl"):
        found = []
        path = self.path / "runs" / name / file
        if path.exists():
            for line in path.read_text(errors="replace").splitlines():
                try:
                    found.append(json.loads(line))
                except json.JSONDecodeError:
                    pass  # the last line of a killed writer
        return found

    def last_step(self, name):
        steps = [line["step"] for line in self.lines(name) if "loss" in line]
        return steps[-1] if steps else 0

    def checkpoints(self, name):
        return sorted((self.path / "runs" / name / "checkpoints").glob("step-????????.h5"))


def wait_for(condition, seconds, process, what):
    """Until the condition holds; fails where it never does, or where the process has ended before."""
    end = time.time() + seconds
    while not condition():
        if process.poll() is not None:
            return False
        expect(time.time() < end, f"no {what} within {seconds} s")
        time.sleep(0.005)
    return True


def ranks_of(process):
    """Process ids of the ranks that this mpirun started."""
    done = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True)
    return [int(word) for word in done.stdout.split()]
