#!/usr/bin/env python3
"""two_hosts_test.py KEEL MPIRUN

Two hosts of network namespaces, each with an address and a host name of its own and two ranks; mpirun enters the second one
as it would enter another machine by ssh. A run goes across them; then the link is cut, a host is killed, packets are
delayed. Needs root, or the right to make namespaces: exit 77 where the kernel does not allow them, and 1 with
KEEL_NEEDS_NAMESPACES=1.
"""
import collections
import fcntl
import json
import os
import pathlib
import re
import select
import signal
import struct
import subprocess
import sys
import threading
import time

import runs

# Names on this machine end with the process that made them, so that those of one that was killed are in nobody's way.
A, B = (f"keel-{letter}-{os.getpid()}" for letter in "ab")
HOSTS = {A: "10.77.0.1", B: "10.77.0.2"}
LINKS = {A: f"kva{os.getpid()}", B: f"kvb{os.getpid()}"}
TUNNELS = {A: f"kta{os.getpid()}", B: f"ktb{os.getpid()}"}
NOT_ALLOWED = 77
LIMIT_seconds = 10  # above what mpirun takes to miss a host, and what a packet takes on the slow link

AGENT = """#!/bin/sh
# What mpirun runs in place of ssh: AGENT ADDRESS COMMAND...
case "$1" in {cases} esac
shift
exec ip netns exec "$host" unshare --uts -- sh -c "hostname $host; $*"
"""


def ip(*words, check=True):
    done = subprocess.run(["ip", *words], capture_output=True, text=True)
    runs.expect(not check or done.returncode == 0, f"ip {' '.join(words)}: {done.stderr}")
    return done


def skip_where_forbidden():
    """Where this process may not make network namespaces; any other reason is a failure."""
    name = f"keel-try-{os.getpid()}"
    done = ip("netns", "add", name, check=False)
    if done.returncode == 0:
        ip("netns", "del", name)
        return
    forbidden = any(words in done.stderr for words in ("Operation not permitted", "Permission denied", "Function not implemented"))
    runs.expect(forbidden, f"ip netns add {name}: {done.stderr}")
    runs.expect(os.environ.get("KEEL_NEEDS_NAMESPACES") != "1",
                f"this process may not make network namespaces, and KEEL_NEEDS_NAMESPACES is 1: {done.stderr}")
    print(f"SKIPPED: this process may not make network namespaces: {done.stderr}")
    sys.exit(NOT_ALLOWED)


def remove_leftovers():
    """What tests that were killed have left: a host's links go with it."""
    def is_left(pid):
        return not pathlib.Path(f"/proc/{pid}").exists()

    for name, pid in re.findall(r"^(keel-(?:a|b|try)-([0-9]+))", ip("netns", "list").stdout, re.MULTILINE):
        if is_left(pid):
            TwoHosts.kill(name)
            ip("netns", "del", name)
    for name, pid in re.findall(r"^[0-9]+: (k[vt][ab]([0-9]+))", ip("-o", "link", "show").stdout, re.MULTILINE):
        if is_left(pid):
            ip("link", "del", name, check=False)  # the other end of one that is gone goes with it


class SlowLink:
    """A link between the hosts that holds each packet back, in place of the fast one: a tunnel device in each, and a thread
    that carries packets from one to the other. The kernel's own way, netem, is in few kernels."""

    def __init__(self, seconds):
        self.seconds, self.done = seconds, False
        self.ends = [self.tunnel(host, name) for host, name in TUNNELS.items()]
        self.thread = threading.Thread(target=self.carry)
        self.thread.start()

    @staticmethod
    def tunnel(host, name):
        TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
        end = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(end, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI))
        ip("link", "set", name, "netns", host)
        ip("-n", host, "addr", "flush", "dev", LINKS[host])
        ip("-n", host, "addr", "add", f"{HOSTS[host]}/24", "dev", name)
        ip("-n", host, "link", "set", name, "up")
        return end

    def carry(self):
        waiting = collections.deque()  # (when it is due, where to, packet)
        while not self.done:
            pause = min(0.05, max(0, waiting[0][0] - time.time())) if waiting else 0.05
            for end in select.select(self.ends, [], [], pause)[0]:
                other = self.ends[1 - self.ends.index(end)]
                waiting.append((time.time() + self.seconds, other, os.read(end, 65536)))
            while waiting and waiting[0][0] <= time.time():
                _, other, packet = waiting.popleft()
                try:
                    os.write(other, packet)
                except OSError:
                    pass  # lost, as packets are

    def remove(self):
        self.done = True
        self.thread.join()
        for end in self.ends:
            os.close(end)


class TwoHosts:
    def __init__(self, place):
        self.place = place
        cases = " ".join(f"{address}) host={host} ;;" for host, address in HOSTS.items())
        self.agent = place.path / "agent.sh"
        self.agent.write_text(AGENT.format(cases=cases))
        self.agent.chmod(0o755)

    def make(self):
        ip("link", "add", LINKS[A], "type", "veth", "peer", "name", LINKS[B])
        for host, link in LINKS.items():
            ip("netns", "add", host)
            ip("link", "set", link, "netns", host)
            ip("-n", host, "addr", "add", f"{HOSTS[host]}/24", "dev", link)
            for device in ("lo", link):
                ip("-n", host, "link", "set", device, "up")

    def remove(self):
        for host in HOSTS:
            self.kill(host)
            ip("netns", "del", host, check=False)
        ip("link", "del", LINKS[A], check=False)  # where it has not come to a host

    @staticmethod
    def processes(host):
        return [int(pid) for pid in subprocess.run(["ip", "netns", "pids", host], capture_output=True, text=True).stdout.split()]

    def rank_on(self, host):
        """A process id of one. Not the shell or the daemon that started it, whose ids may be higher."""
        for pid in self.processes(host):
            if pathlib.Path(f"/proc/{pid}/comm").read_text().strip() == "keel":
                return pid
        runs.fail(f"no rank on {host}: {self.place.output()}")

    @staticmethod
    def kill(host):
        for pid in TwoHosts.processes(host):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def start(self, *overrides):
        network = "10.77.0.0/24"
        launcher = ["--host", ",".join(f"{address}:2" for address in HOSTS.values()), "--bind-to", "none",
                    "--mca", "plm_rsh_agent", str(self.agent), "--mca", "btl", "tcp,vader,self",
                    "--mca", "btl_tcp_if_include", network, "--mca", "oob_tcp_if_include", network,
                    "--mca", "oob_tcp_keepalive_time", "2", "--mca", "oob_tcp_keepalive_intvl", "1",
                    "--mca", "oob_tcp_keepalive_probes", "2"]
        if not any(override.startswith("parallel.tensor=") for override in overrides):
            overrides = ("parallel.tensor=2", *overrides)
        command = self.place.command(4, "name=run", f"parallel.time_limit={LIMIT_seconds}s", *overrides, launcher=launcher)
        first = next(iter(HOSTS))
        inside = ["ip", "netns", "exec", first, "unshare", "--uts", "--", "sh", "-c", f'hostname {first}; exec "$@"', "sh"]
        return self.place.start(inside + command)

    def run(self, steps, seconds=90):
        begin = time.time()
        code = self.place.ended(self.start(f"train.steps={steps}"), seconds, f"a run of {steps} steps")
        runs.expect(code == 0, f"exit {code}: {self.place.output()}")
        return time.time() - begin

    def interrupted(self, what, interfere):
        """A run that is interfered with once it has taken ten more steps. Its output, and how long it took to end."""
        before = self.place.last_step("run")
        process = self.start()
        runs.expect(runs.wait_for(lambda: self.place.last_step("run") >= before + 10, 60, process, "progress"),
                    f"{what}: ended early: {self.place.output()}")
        interfere()
        begin = time.time()
        code = self.place.ended(process, 8 * LIMIT_seconds, what)
        took_seconds = time.time() - begin
        print(f"{what}: exit {code} after {took_seconds:.1f} s", flush=True)
        runs.expect(code != 0, f"{what}: exit 0: {self.place.output()}")
        for host in HOSTS:
            self.kill(host)
        return self.place.output(), took_seconds


def two_hosts(hosts, place):
    steps = 20
    hosts.run(steps)
    names = json.loads((place.path / "runs/run/environment.json").read_text())["hosts"]
    runs.expect(names == [A, A, B, B], f"the ranks are on {names}")

    code = place.ended(hosts.start("parallel.tensor=4"), 60, "a tensor group across hosts")
    runs.expect(code == 2 and A in place.output() and B in place.output() and
                "parallel.tensor_across_hosts=true" in place.output(), f"exit {code}: {place.output()}")

    def hang():
        os.kill(hosts.rank_on(B), signal.SIGSTOP)

    output, took_seconds = hosts.interrupted("a rank hangs", hang)
    runs.expect(LIMIT_seconds <= took_seconds < 6 * LIMIT_seconds, f"missed after {took_seconds:.1f} s: {output}")
    for host in HOSTS:
        runs.expect(f"on host {host}: step" in output, f"no rank of {host} says where it stands: {output}")
    runs.expect("without an answer of rank" in output, f"nobody is named: {output}")
    steps = place.last_step("run") + 5
    hosts.run(steps)

    output, took_seconds = hosts.interrupted("the link is cut", lambda: ip("-n", B, "link", "set", LINKS[B], "down"))
    runs.expect("lost communication" in output and HOSTS[B] in output, f"the host is not named: {output}")
    runs.expect(took_seconds < 3 * LIMIT_seconds, f"the keepalive took {took_seconds:.1f} s")
    ip("-n", B, "link", "set", LINKS[B], "up")
    steps = place.last_step("run") + 5
    hosts.run(steps)

    output, took_seconds = hosts.interrupted("a host is killed", lambda: hosts.kill(B))
    runs.expect("daemon" in output and took_seconds < 3 * LIMIT_seconds, f"mpirun took {took_seconds:.1f} s: {output}")
    steps = place.last_step("run") + 5
    hosts.run(steps)

    quiet = hosts.run(steps + 2)
    link = SlowLink(0.2)
    try:
        slow = hosts.run(steps + 4, seconds=300)
    finally:
        link.remove()
    print(f"2 steps: {quiet:.1f} s, with 200 ms on each packet {slow:.1f} s")
    runs.expect(slow > quiet + 2, "packets were not delayed")


def main():
    skip_where_forbidden()
    remove_leftovers()
    place = runs.Place(*sys.argv[1:3])
    hosts = TwoHosts(place)
    try:
        hosts.make()
        two_hosts(hosts, place)
    finally:
        hosts.remove()
    place.remove()


if __name__ == "__main__":
    main()
