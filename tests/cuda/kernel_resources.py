#!/usr/bin/env python3
"""What ptxas says of every kernel of a build by nvcc: kernel_resources.py PTXAS BUILD_DIR [--table], or --self-test.

Objects carry their PTX uncompressed. It is assembled once more for sm_90a, and the script fails where a kernel spills
registers or keeps arrays in local memory, and where a kernel for wide elements (a template argument 8) has no 128-bit
access. --table prints registers, shared memory and wide accesses per kernel.
"""
import concurrent.futures
import pathlib
import re
import subprocess
import sys
import tempfile

ARCHITECTURE = "sm_90a"
PTX = re.compile(rb"\.version [0-9.]+\s+\.target " + ARCHITECTURE.encode() + rb"[^\0]*")
ENTRY = re.compile(r"Compiling entry function '(\w+)' for '\w+'(.*?)(?=Compiling entry function|\Z)", re.S)
WIDE = re.compile(r"\b(?:ld|st)\S*\.v4\.\S*32\b|\b(?:ld|st)\S*\.v2\.\S*64\b|\bcp\.async\.cg")


def kernels_of_ptx(ptx):
    """Name -> body, of the entry points."""
    parts = re.split(r"\.entry (\w+)", ptx)
    return dict(zip(parts[1::2], parts[2::2]))


def number(pattern, text):
    found = re.search(pattern, text)
    return int(found.group(1)) if found else 0


def kernels_of_report(report):
    """Name -> {registers, stack, spilled, shared} from the output of ptxas -v."""
    return {
        name: {
            "registers": number(r"Used (\d+) registers", text),
            "stack": number(r"(\d+) bytes stack frame", text),
            "spilled": number(r"(\d+) bytes spill stores", text) + number(r"(\d+) bytes spill loads", text),
            "shared": number(r"(\d+) bytes smem", text),
        }
        for name, text in ENTRY.findall(report)
    }


def problems_of(name, resources, body):
    if resources["spilled"]:
        yield f"{name}: spills {resources['spilled']} bytes"
    if resources["stack"]:
        yield f"{name}: keeps {resources['stack']} bytes in local memory"
    threads = number(r"\.maxntid (\d+)", body)
    if not threads:
        yield f"{name}: has no __launch_bounds__"
    if threads * resources["registers"] > 65536:
        yield f"{name}: {threads} threads of {resources['registers']} registers do not fit a multiprocessor"
    if "Li8E" in name and not WIDE.search(body):
        yield f"{name}: no 128-bit access"


def assemble(ptxas, ptx):
    with tempfile.NamedTemporaryFile("wb", suffix=".ptx") as file:
        file.write(ptx)
        file.flush()
        run = subprocess.run([ptxas, "-v", f"-arch={ARCHITECTURE}", file.name, "-o", "/dev/null"], capture_output=True,
                             text=True, check=False)
    if run.returncode:
        sys.exit(run.stderr)
    return kernels_of_report(run.stderr), kernels_of_ptx(ptx.decode())


def main(ptxas, build, table):
    objects = sorted(pathlib.Path(build, "framework").rglob("*.cu.o"))
    texts = [ptx for file in objects for ptx in PTX.findall(file.read_bytes())]
    if not texts:
        sys.exit(f"no PTX for {ARCHITECTURE} in {build}: was it built by nvcc for that architecture?")
    problems, count = [], 0
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for resources, bodies in pool.map(lambda ptx: assemble(ptxas, ptx), texts):
            for name, body in bodies.items():
                count += 1
                problems += problems_of(name, resources[name], body)
                if table:
                    wide = len(WIDE.findall(body))
                    print(f"{resources[name]['registers']:4} registers {wide:3} wide  {name}")
    print(*problems, sep="\n")
    print(f"{count} kernels, {len(problems)} problems")
    sys.exit(1 if problems else 0)


def self_test():
    report = """ptxas info    : Compiling entry function '_Z4fineILi8EE' for 'sm_90a'
ptxas info    : Function properties for _Z4fineILi8EE
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers
ptxas info    : Compiling entry function '_Z4badILi8EE' for 'sm_90a'
ptxas info    : Function properties for _Z4badILi8EE
    16 bytes stack frame, 12 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 64 bytes smem
"""
    ptx = ".visible .entry _Z4fineILi8EE(\n.maxntid 256\n ld.global.v4.u32 {%r1}\n" \
          ".visible .entry _Z4badILi8EE(\n.maxntid 512\n ld.global.u32 %r1\n"
    resources, bodies = kernels_of_report(report), kernels_of_ptx(ptx)
    found = {name: list(problems_of(name, resources[name], body)) for name, body in bodies.items()}
    if found["_Z4fineILi8EE"] or len(found["_Z4badILi8EE"]) != 4:
        sys.exit(f"wrong problems: {found}")


if __name__ == "__main__":
    if sys.argv[1] == "--self-test":
        self_test()
    else:
        main(sys.argv[1], sys.argv[2], "--table" in sys.argv)
