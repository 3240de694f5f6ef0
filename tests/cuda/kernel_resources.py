#!/usr/bin/env python3
"""What ptxas and nvdisasm say of every kernel of a build by nvcc.

kernel_resources.py PTXAS NVDISASM BUILD_DIR [--table], or --self-test. NVDISASM may be empty: then instructions are not
looked at, and the last line says so. What kernels ask for when they are launched, which ptxas does not see, the build's
gpu_check tells.

Objects carry their PTX uncompressed, one for each architecture they were built for. It is assembled once more, and the
script fails where a kernel of one of them
  - spills registers or keeps arrays in local memory,
  - has no __launch_bounds__, or fewer blocks fit a multiprocessor than these (or STREAMING_THREADS) say,
  - multiplies bf16 matrices in attention without HMMA, or stores rows of attention less than 128 bits at a time,
  - takes wide elements (a template argument 8) and has no 128-bit access, or lost one of the PTX on the way to SASS.
--table prints registers, blocks per multiprocessor and wide accesses per kernel.
"""
import collections
import concurrent.futures
import pathlib
import re
import subprocess
import sys
import tempfile

PTX = re.compile(rb"\.version [0-9.]+\s+\.target (sm_\w+)[^\0]*")
ENTRY = re.compile(r"Compiling entry function '(\w+)' for '\w+'(.*?)(?=Compiling entry function|\Z)", re.S)
SASS = re.compile(r"^\.text\.(\w+):$(.*?)(?=^\.text\.\w+:$|\Z)", re.S | re.M)
WIDE_LOAD, WIDE_STORE = (re.compile(rf"\b{name}\.global\S*\.(?:v4\.\S*32|v2\.\S*64)\b") for name in ("ld", "st"))
REGISTERS = 65536  # of a multiprocessor, as what follows; architectures that are not named have the most
SHARED_BYTES, MOST_SHARED_BYTES = {"sm_80": 164 << 10, "sm_86": 100 << 10, "sm_89": 100 << 10}, 228 << 10
RESERVED_BYTES = 1024  # of each block
THREADS, MOST_THREADS = {"sm_86": 1536, "sm_89": 1536}, 2048
STREAMING_THREADS = 1024  # of kernels for wide elements, where their __launch_bounds__ name no number of blocks
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


def problems_of(name, resources, body, architecture):
    if resources["spilled"]:
        yield f"{name}: spills {resources['spilled']} bytes"
    if resources["stack"]:
        yield f"{name}: keeps {resources['stack']} bytes in local memory"
    threads = number(r"\.maxntid (\d+)", body)
    if not threads:
        yield f"{name}: has no __launch_bounds__"
    wanted = number(r"\.minnctapersm (\d+)", body) or (STREAMING_THREADS // max(threads, 1) if "Li8E" in name else 1)
    fitting = blocks_of(resources, threads, architecture)
    if fitting < wanted:
        yield (f"{name}: {fitting} blocks of {threads} threads with {resources['registers']} registers and "
               f"{resources['shared']} bytes fit a multiprocessor, not {wanted}")
    if "Li8E" in name and not WIDE.search(body):
        yield f"{name}: no 128-bit access"


def blocks_of(resources, threads, architecture):
    """How many blocks fit a multiprocessor; registers are given to a warp eight by eight."""
    registers = (resources["registers"] + 7) // 8 * 8 * max(threads, 1)
    return min(REGISTERS // max(registers, 1),
               SHARED_BYTES.get(architecture, MOST_SHARED_BYTES) // (resources["shared"] + RESERVED_BYTES),
               THREADS.get(architecture, MOST_THREADS) // max(threads, 1))


def shared_at_launch(table, name, architecture):
    """Bytes that launches of the kernel ask for; 0 where they are not told, or another kernel is taken there."""
    for part, shared_bytes, least_total_bytes in table:
        if part in name and least_total_bytes <= SHARED_BYTES.get(architecture, MOST_SHARED_BYTES):
            return shared_bytes
    return 0


def problems_of_sass(name, source, body, sass):
    multiplies = "find_places" not in name and "add_slots" not in name  # which write no rows, or only add
    if source.startswith("attention") and "__nv_bfloat16" in name and multiplies:
        if "HMMA.16816.F32.BF16" not in sass:
            yield f"{name}: no HMMA"
        if "STG.E.128" not in sass:
            yield f"{name}: no 128-bit store"
    for pattern, instruction in ((WIDE_LOAD, "LDG.E.128"), (WIDE_STORE, "STG.E.128")):
        if "Li8E" in name and pattern.search(body) and instruction not in sass:
            yield f"{name}: no {instruction} for a 128-bit access of the PTX"


def texts_of(data):
    """Architecture and PTX, of all that an object carries."""
    return [(found.group(1).decode(), found.group(0)) for found in PTX.finditer(data)]


def assemble(ptxas, nvdisasm, architecture, ptx):
    """Resources, PTX and SASS of the kernels of one file, by name."""
    with tempfile.TemporaryDirectory() as folder:
        file, cubin = pathlib.Path(folder, "kernels.ptx"), pathlib.Path(folder, "kernels.cubin")
        file.write_bytes(ptx)
        run = subprocess.run([ptxas, "-v", f"-arch={architecture}", file, "-o", cubin], capture_output=True, text=True,
                             check=False)
        if run.returncode:
            sys.exit(run.stderr)
        sass = ""
        if nvdisasm:
            sass = subprocess.run([nvdisasm, "-c", cubin], capture_output=True, text=True, check=True).stdout
    return kernels_of_report(run.stderr), kernels_of_ptx(ptx.decode()), dict(SASS.findall(sass))


def main(ptxas, nvdisasm, build, table):
    objects = sorted(pathlib.Path(build, "framework").rglob("*.cu.o"))
    texts = [(file.name, *text) for file in objects for text in texts_of(file.read_bytes())]
    if not texts:
        sys.exit(f"no PTX in {build}: was it built by nvcc?")
    told = subprocess.run([pathlib.Path(build, "launch/gpu_check"), "--kernels"], capture_output=True, text=True,
                          check=True)
    launched = [(part, int(size), int(least)) for part, size, least in map(str.split, told.stdout.splitlines())]
    problems, counts, seen = [], collections.Counter(), set()
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        results = pool.map(lambda text: (*text[:2], *assemble(ptxas, nvdisasm, *text[1:])), texts)
        for source, architecture, resources, bodies, sass in results:
            for name, body in bodies.items():
                counts[architecture] += 1
                resources[name]["shared"] += shared_at_launch(launched, name, architecture)
                seen.update(part for part, _, _ in launched if part in name)
                found = list(problems_of(name, resources[name], body, architecture))
                if nvdisasm:
                    found += problems_of_sass(name, source, body, sass[name])
                problems += [f"{architecture} {problem}" for problem in found]
                if table:
                    threads = number(r"\.maxntid (\d+)", body)
                    print(f"{architecture} {resources[name]['registers']:4} registers "
                          f"{blocks_of(resources[name], threads, architecture):3} blocks of {threads:4} "
                          f"{len(WIDE.findall(body)):3} wide  {name}")
    problems += [f"{part}: gpu_check tells of it, and no kernel has it" for part, _, _ in launched if part not in seen]
    print(*problems, sep="\n")
    kernels = ", ".join(f"{count} kernels for {architecture}" for architecture, count in sorted(counts.items()))
    print(f"{kernels}: {len(problems)} problems" + ("" if nvdisasm else "; no nvdisasm: instructions not looked at"))
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
    found = {name: list(problems_of(name, resources[name], body, "sm_90a")) for name, body in bodies.items()}
    if found["_Z4fineILi8EE"] or len(found["_Z4badILi8EE"]) != 4:
        sys.exit(f"wrong problems: {found}")
    bounds = {"registers": 40, "shared": 0, "stack": 0, "spilled": 0}
    for blocks, expected in ((6, 0), (7, 1)):
        text = f".maxntid 256\n.minnctapersm {blocks}\n ld.global.v4.u32 {{%r1}}\n"
        if len(list(problems_of("_Z4fineILi8EE", bounds, text, "sm_90a"))) != expected:
            sys.exit(f"wrong occupancy: {blocks} blocks")
    if [blocks_of(bounds, 256, architecture) for architecture in ("sm_80", "sm_86", "sm_90a")] != [6, 6, 6] or \
            blocks_of({"registers": 16, "shared": 53 << 10}, 256, "sm_80") != 3 or \
            blocks_of({"registers": 16, "shared": 54 << 10}, 256, "sm_80") != 2 or \
            blocks_of({"registers": 16, "shared": 0}, 256, "sm_86") != 6:
        sys.exit("wrong blocks of an architecture")
    table = [("6MemoryILi64EE", 90000, 184000), ("6MemoryILi48EE", 70000, 0)]
    if [shared_at_launch(table, f"_Z7forwardI6MemoryILi{keys}EEE", architecture)
            for keys in (64, 48, 32) for architecture in ("sm_80", "sm_90a")] != [0, 90000, 70000, 70000, 0, 0]:
        sys.exit("wrong shared memory of launches")
    both = b"\0.version 9.0\n.target sm_80\n one\0\0.version 9.0\n.target sm_90a\n two\0"
    found = [(architecture, text.split()[-1]) for architecture, text in texts_of(both)]
    if found != [("sm_80", b"one"), ("sm_90a", b"two")]:
        sys.exit(f"wrong PTX: {texts_of(both)}")
    sass = dict(SASS.findall(".text._Z3one:\n LDG.E.128 R4, HMMA.16816.F32.BF16\n.text._Z3two:\n STG.E R1\n"))
    attention, wide = "_Z7forwardI13__nv_bfloat16Li64EE", "_Z4fineILi8EE"
    moves = " ld.global.v4.u32 {%r1}\n st.global.v4.u32 {%r1}\n"
    for name, source, kernel, expected in (
        (attention, "attention_cuda.cu.o", "_Z3one", ["no 128-bit store"]),
        (attention, "attention_cuda.cu.o", "_Z3two", ["no HMMA", "no 128-bit store"]),
        ("_Z9add_slotsI13__nv_bfloat16Li1EE", "attention_backward_cuda.cu.o", "_Z3two", []),
        (wide, "norm_cuda.cu.o", "_Z3one", ["no STG.E.128 for a 128-bit access of the PTX"]),
        (wide, "norm_cuda.cu.o", "_Z3two", ["no LDG.E.128 for a 128-bit access of the PTX",
                                            "no STG.E.128 for a 128-bit access of the PTX"]),
    ):
        problems = list(problems_of_sass(name, source, moves, sass[kernel]))
        if problems != [f"{name}: {problem}" for problem in expected]:
            sys.exit(f"wrong problems in SASS: {problems}")


if __name__ == "__main__":
    if sys.argv[1] == "--self-test":
        self_test()
    else:
        main(sys.argv[1], sys.argv[2], sys.argv[3], "--table" in sys.argv)
