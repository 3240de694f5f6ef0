#!/usr/bin/env python3
"""launch/gpu-check.sh where things go wrong: gpu_check_test.py SCRIPT GPU_CHECK, the latter a build's on the stand-in.

In the place of the device tests stand programs that pass, skip, fail with a sentence of CUDA's, or never end.
"""
import json
import os
import pathlib
import re
import subprocess
import sys
import tarfile
import tempfile

REPORT = """#!/usr/bin/env python3
import json, sys
path = sys.argv[1].removeprefix("--gtest_output=json:")
case = {{"name": "Case", "classname": "Suite", "result": "{result}", "layout of x": '{{"lane": [[0, 1]]}}'}}
if {failures!r}:
    case["failures"] = [{{"failure": {failures!r}, "type": ""}}]
json.dump({{"tests": 2, "testsuites": [{{"testsuite": [case]}}]}}, open(path, "w"))
print({failures!r})
sys.exit({code})
"""
FAULT = "cudaLaunchKernel(entry): an illegal memory access was encountered"
CRASH = "#!/bin/sh\necho '[ RUN      ] Suite.Crash'\necho CUBLAS_STATUS_EXECUTION_FAILED\nkill -SEGV $$\n"
HANG = "#!/bin/sh\necho '[ RUN      ] Suite.Hang'\nsleep 1000\n"
STUCK = """#!/bin/sh
while [ $# -gt 0 ]; do
  [ "$1" = --out ] && printf '{\\n  "at": "attention",\\n  "errors": {}\\n}\\n' >"$2" && sleep 1000
  shift
done
"""


def check(script, program, tests, *arguments, environment=()):
    """Exit code, output and report of the script over a build folder with these tests."""
    with tempfile.TemporaryDirectory() as folder:
        build = pathlib.Path(folder, "build")
        for part in ("tests/framework/ops", "tests/framework/tensor", "tests/cuda", "launch"):
            (build / part).mkdir(parents=True)
        (build / "launch/gpu_check").symlink_to(program)
        for name, text in tests.items():
            file = build / "tests/framework/ops" / f"test_ops_{name}"
            file.write_text(text)
            file.chmod(0o755)
        run = subprocess.run([script, "--build", build, "--small", "--out", f"{folder}/report.json", *arguments],
                             capture_output=True, text=True, check=False, timeout=1400,
                             env={**os.environ, "KEEL_CUDA_HOST_CHECK": "0", **dict(environment)})
        report = pathlib.Path(folder, "report.json")
        logs = {file.name for file in pathlib.Path(folder).glob("report-logs/*.log")}
        return run.returncode, run.stdout + run.stderr, json.loads(report.read_text()) if report.exists() else {}, logs


def check_bundle(script, compiler_needs_glibc, program, environment=()):
    """The same of a bundle whose compiler's libraries want that C library; `program` is its gpu_check's text."""
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "bin").mkdir()
        for file, text in (("gpu-check.sh", pathlib.Path(script).read_text()), ("bin/gpu_check", program),
                           ("bin/test_a", "#!/bin/sh\n"),
                           ("needs", f"needs_glibc=2.34\ncompiler_needs_glibc={compiler_needs_glibc}\n")):
            pathlib.Path(folder, file).write_text(text)
            pathlib.Path(folder, file).chmod(0o755)
        run = subprocess.run([f"{folder}/gpu-check.sh"], cwd=folder, capture_output=True, text=True, check=False,
                             env={**os.environ, **dict(environment)})
        return run.returncode, run.stdout + run.stderr


def check_endings(script):
    """An earlier report is not taken for this one's, and a build without tests is named."""
    with tempfile.TemporaryDirectory() as folder:
        build = pathlib.Path(folder, "build")
        for part in ("tests/framework/ops", "tests/framework/tensor", "tests/cuda", "launch"):
            (build / part).mkdir(parents=True)
        dies = build / "launch/gpu_check"
        dies.write_text("#!/bin/sh\n[ $1 = --help ] || [ $1 = --look ] || kill -SEGV $$\n")
        dies.chmod(0o755)
        report = pathlib.Path(folder, "report.json")
        report.write_text('{\n  "errors": {}\n}\n')
        command = [script, "--build", build, "--out", report]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        require(run.returncode == 2 and "has no device tests: build the target" in run.stderr, "a build without tests",
                run.returncode, run.stderr)
        test = build / "tests/framework/ops/test_ops_a"
        test.write_text("#!/bin/sh\n")
        test.chmod(0o755)
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        require(run.returncode == 1 and "before " + str(report) + " was written" in run.stderr and not report.exists(),
                "a report of an earlier start", run.returncode, run.stderr)
        # All in one file, also where it ends badly.
        packed = pathlib.Path(folder, "results.tgz")
        for text, files in (("kill -SEGV $$", {"report-logs/test_ops_a.log"}),
                            (f"echo '{{}}' >{report}", {"report-logs/test_ops_a.log", "report.json"})):
            dies.write_text(f"#!/bin/sh\n[ $1 = --help ] || [ $1 = --look ] || {text}\n")
            run = subprocess.run([*command, "--results", packed], capture_output=True, text=True, check=False)
            names = set(tarfile.open(packed).getnames())
            require(run.returncode == (0 if "report.json" in files else 1) and files <= names and
                    ("report.json" in names) == ("report.json" in files), "one file of results", run, names)
            packed.unlink()


def require(condition, what, *shown):
    if not condition:
        sys.exit("\n".join([f"gpu_check_test: {what}", *map(str, shown)]))


def main(script, program):
    passing = REPORT.format(result="COMPLETED", failures="", code=0)
    code, output, report, logs = check(
        script, program,
        {"good": passing, "skips": REPORT.format(result="SKIPPED", failures="", code=0),
         "fault": REPORT.format(result="COMPLETED", failures=FAULT, code=1), "crash": CRASH, "hang": HANG},
        "--steps", "12", "--deadline", "1500", "--test-limit", "20")
    tests = report["tests"]
    require(code == 1 and FAULT in output, "a failing test does not show its sentence", code, output)
    failures = tests["test_ops_fault"]["failures"]
    require(failures == [{"case": "Suite.Case", "message": FAULT}], "a failure is lost", tests)
    require(tests["test_ops_skips"]["skipped"] == ["Suite.Case"], "a skipped case is not counted", tests)
    require(tests["test_ops_good"]["exit_code"] == 0 and tests["test_ops_good"]["cases"] == 2 and
            tests["test_ops_good"]["layouts"]["layout of x"] == {"lane": [[0, 1]]}, "cases or layouts are lost", tests)
    require(tests["test_ops_crash"]["exit_code"] != 0 and "CUBLAS_STATUS_" in tests["test_ops_crash"]["end_of_log"],
            "the end of a crashed test's log is lost", tests)
    require(tests["test_ops_hang"]["exit_code"] == 124 and "Suite.Hang" in tests["test_ops_hang"]["end_of_log"],
            "a test that hangs", tests)
    require(report["cases"] == {"all": 6, "failed": 1, "skipped": 1}, "cases are not counted", report["cases"])
    require(len(logs) == 5, "logs are not kept", logs)
    require(not report["errors"] and not report["left_out"] and "at" not in report, "a good program failed", report)
    small = report["training"]["small"]
    require(small["tokens_per_second"] > 0 and small["tokens_per_second_without_graphs"] > 0 and
            small["used_bytes"] >= small["planned_bytes"] > 0, "training says too little", small)
    compared = report["beside_the_cpu"]
    require(sorted(compared) == ["gradient_norm", "loss", "update_norm"] and len(compared["loss"]) == 5,
            "the CPU was not compared with", compared)
    require(len(report["passes"]) > 15 and "qk_norm_rope of shared gains backward" in report["passes"],
            "passes are missing", report["passes"])

    # What comes too late is left out and named.
    code, output, report, _ = check(script, program, {"late": passing}, "--deadline", "0")
    require(code == 1 and {"test_ops_late", "products", "training small"} < set(report["left_out"]) and
            "test_ops_late: left out" in output, "what was left out is not named", code, output, report)
    with tempfile.TemporaryDirectory() as folder:
        stuck = pathlib.Path(folder, "stuck")
        stuck.write_text(STUCK)
        stuck.chmod(0o755)
        code, output, report, _ = check(script, stuck, {"late": passing}, "--deadline", "0")
        require(code == 1 and report["at"] == "attention" and "the part 'attention'" in output, "a part that hangs",
                code, output, report)

    code, output, report, _ = check(script, program, {"good": passing}, environment=[("KEEL_CUDA_HOST_DEVICES", "0")])
    require(code == 2 and "no GPU is visible" in output and not report, "without a GPU", code, output)
    code, output, report, _ = check(script, program, {"good": passing},
                                    environment=[("KEEL_CUDA_HOST_DRIVER", "12020")])
    require(code == 2 and "the driver is made for CUDA 12.2" in output and "is visible" not in output and not report,
            "an old driver", code, output)
    code, output, report, _ = check(script, program, {"good": passing},
                                    environment=[("KEEL_CUDA_HOST_CAPABILITY", "75")])
    require(code == 2 and "kernels for 80 only" in output and not report, "a GPU without kernels", code, output)
    check_endings(script)

    # A bundle takes its own libstdc++ where the host's C library is new enough, and says where it cannot start.
    shows = "#!/bin/sh\n[ $1 != --look ] || { echo in $LD_LIBRARY_PATH; exit 1; }\n"
    for needed, own in (("2.2", True), ("9.99", False)):
        code, output = check_bundle(script, needed, shows)
        require(code == 2 and ("/compiler:" in output) == own and "glibc here is" in output, "a bundle's libraries",
                output)
    code, output = check_bundle(script, "2.2", "#!/bin/sh\necho 'version GLIBC_2.36 not found' >&2; exit 1\n")
    require(code == 2 and "GLIBC_2.36 not found" in output and "does not start here" in output,
            "a bundle that is too new", output)

    # CUDA's libraries, as toolkits and pip lay them out.
    with tempfile.TemporaryDirectory() as folder:
        pip, toolkit = pathlib.Path(folder, "pip"), pathlib.Path(folder, "toolkit")
        pathlib.Path(pip, "nvidia/cu13/lib").mkdir(parents=True)
        pathlib.Path(toolkit, "bin").mkdir(parents=True)
        nvcc = pathlib.Path(toolkit, "bin/nvcc")
        nvcc.write_text("#!/bin/sh\n")
        nvcc.chmod(0o755)
        environment = [("PYTHONPATH", str(pip)), ("PATH", f"{nvcc.parent}:{os.environ['PATH']}"),
                       ("CUDA_HOME", "/home/cuda")]
        for text in (shows, "#!/bin/sh\necho 'libcublasLt.so.13: cannot open' >&2; exit 1\n"):
            code, output = check_bundle(script, "2.2", text, environment)
            for place in (f"{pip}/nvidia/cu13/lib", f"{toolkit}/lib64", "/home/cuda/lib", "/home/cuda/lib64"):
                require(code == 2 and re.search(place + r"[:\s]", output), f"{place} is not looked into", output)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
