#!/usr/bin/env python3
"""kill_test.py KEEL MPIRUN [--kills N] [--layouts]

Kills random ranks by random signals at random moments, a third of them while a checkpoint is written, over tensor 2 x data 2; the same command
then goes on each time. No start may fail. What is lost is at most an interval, or, where the kill ended a save, an interval
and the steps since that save began: training goes on beside it until the next one. The loss curve is that of a run that nobody
killed, bit for bit. With --layouts every third start is at another layout; the curve is then only near.
"""
import argparse
import os
import pathlib
import random
import re
import signal
import time

import runs

EVERY = 5
LAYOUTS = [(4, 2), (4, 2), (2, 1), (1, 1), (2, 2)]


def number_of(pid):
    """The rank of this process."""
    variables = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return int(next(variable for variable in variables if variable.startswith(b"OMPI_COMM_WORLD_RANK=")).split(b"=")[1])


def kill_one(place, process, rng, before):
    """Waits for progress, or for a save, and kills a rank. The ranks that there were, none if there was none to kill; and the
    number of the killed one with its signal."""
    during_save = rng.random() < 1 / 3
    if during_save:
        writing = place.path / "runs/killed/checkpoints"
        moment = lambda: place.last_step("killed") > before and any(writing.glob("*.writing"))
    else:
        moment = lambda: place.last_step("killed") > before
    if not runs.wait_for(moment, 60, process, "progress"):
        return [], None
    time.sleep(rng.random() * 0.02 if during_save else rng.random() ** 2 * 0.6)
    ranks = runs.ranks_of(process)
    if not ranks:
        return [], None
    pid, by = rng.choice(ranks), rng.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT])
    number = number_of(pid)
    os.kill(pid, by)
    return ranks, (number, int(by))


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def cut_save(place):
    """The step of the save that a kill ended; none if it met none."""
    cut = [int(path.name.split(".")[0].split("-")[1]) for path in (place.path / "runs/killed/checkpoints").glob("*.writing")]
    runs.expect(len(cut) <= 1, f"saves of several steps at once: {cut}")
    return cut[0] if cut else None


def check_start(place, before, cut):
    """What the restart went on from. A kill without a save may have come between a step and its save."""
    events = [event for event in place.lines("killed", "events.jsonl") if event["event"] in ("start", "resume")]
    begin = events[-1]["step"] if events else 0
    most = EVERY if cut is None else before - cut + EVERY
    runs.expect(0 <= before - begin <= most and most <= 2 * EVERY,
                f"reached step {before}, went on from {begin}, where {most} steps may be lost (a save of step {cut} was cut): "
                f"{place.output()}")
    return begin


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("mpirun")
    parser.add_argument("--kills", type=int, default=6)
    parser.add_argument("--layouts", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    place = runs.Place(arguments.program, arguments.mpirun)

    cut, cuts, most_lost = None, 0, 0  # the save that the last kill ended; how many did; steps
    for kill in range(arguments.kills):
        ranks, tensor = rng.choice(LAYOUTS) if arguments.layouts else (4, 2)
        before = place.last_step("killed")
        process = place.start(place.command(ranks, f"parallel.tensor={tensor}", "name=killed"))
        killed, cause = kill_one(place, process, rng, before)
        code = place.ended(process, 60, f"kill {kill}")
        runs.expect(killed and code != 0, f"kill {kill}: exit {code}, killed {killed}: {place.output()}")
        named = re.findall(r"process rank (\d+) with PID \d+ on node \S+ exited on signal (\d+)", place.output())
        runs.expect([tuple(map(int, one)) for one in named] == [cause], f"kill {kill}: rank and signal {cause}, told {named}: "
                    f"{place.output()}")
        end = time.time() + 10
        while any(map(alive, killed)):
            runs.expect(time.time() < end, f"kill {kill}: ranks of {killed} live on: {place.output()}")
            time.sleep(0.1)
        begin = check_start(place, before, cut)
        most_lost = max(most_lost, before - begin)
        cut = cut_save(place)
        cuts += cut is not None
        print(f"kill {kill + 1}: {ranks} ranks from step {begin} to {place.last_step('killed')}"
              f"{'' if cut is None else f', in the save of step {cut}'}", flush=True)

    steps = place.last_step("killed") + EVERY
    for name in ("killed", "clear"):
        process = place.start(place.command(4, "parallel.tensor=2", f"name={name}", f"train.steps={steps}"))
        code = place.ended(process, 600, name)
        runs.expect(code == 0, f"{name}: exit {code}: {place.output()}")
    for key in ("step", "loss", "gradient_norm", "update_norm"):
        killed, clear = [[line[key] for line in place.lines(name)] for name in ("killed", "clear")]
        if arguments.layouts:
            near = all(abs(a - b) <= 2e-2 * abs(b) for a, b in zip(killed, clear, strict=True) if key in ("step", "loss"))
        else:
            near = killed == clear
        runs.expect(near, f"{key} is not that of the run that nobody killed")
    left = [path.name for path in (place.path / "runs/killed/checkpoints").iterdir() if ".writing" in path.name]
    runs.expect(not left, f"left behind: {left}")
    print(f"{arguments.kills} kills, {cuts} of them in the middle of a save, at most {most_lost} steps lost, saves every {EVERY}, "
          f"{steps} steps: the same curve")
    runs.expect(cuts > 0 or arguments.kills < 50, "no kill met a save")
    place.remove()


if __name__ == "__main__":
    main()
