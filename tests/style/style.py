#!/usr/bin/env python3
"""The habits of CONTRIBUTING.md, checked over the source tree: style.py ROOT, or style.py --self-test."""
import contextlib
import pathlib
import re
import sys
import tempfile

# From the bottom up; a folder includes itself and folders on lower levels only.
LEVELS = [
    ["framework/base"],
    ["framework/tensor", "framework/config"],
    ["framework/ops", "framework/comm", "framework/io"],
    ["framework/nn", "framework/data"],
    ["framework/optim", "framework/parallel"],
    ["framework/train", "framework/lab"],
    ["models", "checkpoints"],
    ["launch/common"],
    ["launch/convert", "launch/generate", "launch/plan", "launch/train"],
    ["launch/ablate", "launch/bench"],
    ["launch"],
]
LEVEL = {folder: level for level, folders in enumerate(LEVELS) for folder in folders}
LONGEST_FILE = 500
LONGEST_FUNCTION = 70
MOST_PARAMETERS = 5
# A type and a name, which arguments of calls are not.
PARAMETER = re.compile(r"\s*(const\s+)?[\w:]+(\s+const)?(\s*([&*]|[.]{3})+\s*|\s+)\w+\s*(=.*)?", re.S)
# Preprocessor conditions: only in the file that CMake fills in. "#if HWY_ONCE" is Highway's own idiom.
CONDITION = re.compile(r"^\s*#\s*(if|ifdef|ifndef)\b(?!\s+HWY_ONCE)")
LEFT_OPEN = re.compile(r"\b(TODO|FIXME|XXX)\b")
CASES = "tests/CASES.md"


def folder_of(path):
    parts = path.split("/")
    in_parts = parts[0] == "framework" or (parts[0] == "launch" and len(parts) > 2)
    return "/".join(parts[:2]) if in_parts else parts[0]


def problems_of_include(path, line):
    included = re.match(r'\s*#include "([^"]+)"', line)
    if not included:
        return
    target = included.group(1)
    own, other = folder_of(path), folder_of(target)
    if other not in LEVEL:
        if not target.startswith("hwy/"):
            yield f'includes "{target}", which is not written from the root of the project'
    elif own != other and LEVEL[other] >= LEVEL[own]:
        yield f'includes "{target}": {own} may only include folders below it'


def long_functions(lines):
    """(line, lines) of functions at the left margin that are too long; clang-format puts their braces where they are found."""
    begin, first = 0, ""
    for number, line in enumerate(lines, 1):
        if re.match(r"[A-Za-z_~\[]", line):
            begin, first = number, line
        elif line == "}" and not re.match(r"(namespace|class|struct|enum|union|extern)\b", first):
            if number - begin >= LONGEST_FUNCTION:
                yield begin, number - begin + 1
            first = "namespace"


def crowded_signatures(text):
    """(line, parameters) of signatures with too many parameters. Parentheses are looked at from the inside out."""
    text, before, found = re.sub(r'//.*|"(\\.|[^"\\\n])*"', "", text), None, []

    def look(match):
        inside, outer = match.group(1), None
        while inside != outer:
            outer, inside = inside, re.sub(r"<[^<>]*>|\{[^{}]*\}", "", inside)
        parameters = inside.split(",")
        if len(parameters) > MOST_PARAMETERS and all(map(PARAMETER.fullmatch, parameters)):
            found.append((match.string.count("\n", 0, match.start()) + 1, len(parameters)))
        return "\n" * match.group().count("\n")

    while text != before:
        before, text = text, re.sub(r"\(([^()]*)\)", look, text)
    return found


def problems_of(path, text):
    """(line, problem) pairs of one file; `path` is relative to the root."""
    lines = text.split("\n")
    if len(lines) > LONGEST_FILE:
        yield len(lines), f"{len(lines)} lines; {LONGEST_FILE} at most"
    for number, length in long_functions(lines):
        yield number, f"a function of {length} lines; {LONGEST_FUNCTION} at most"
    if folder_of(path) in LEVEL:
        for number, count in crowded_signatures(text):
            yield number, f"a function of {count} parameters; {MOST_PARAMETERS} at most, then a named struct"
    for number, line in enumerate(lines, 1):
        if folder_of(path) in LEVEL:
            for problem in problems_of_include(path, line):
                yield number, problem
        if CONDITION.match(line):
            yield number, "conditional compilation outside build_config.h.in"
        if LEFT_OPEN.search(line):
            yield number, "left open"


def problems_of_references(texts):
    """Problems of what sources cite: documents that are not there, cases of tests/CASES.md without a test, and the other way."""
    documents = {path.rsplit("/", 1)[-1] for path in texts if path.endswith(".md")}
    cases, cited = set(re.findall(r"^### (R\d+) ", texts[CASES], re.M)), set()
    for path, text in texts.items():
        if path == CASES or path == "tests/style/style.py":
            continue
        for name in sorted(set(re.findall(r"\b\w+\.md\b", text)) - documents):
            yield f"{path}: names {name}, which is not in the tree"
        if path.startswith("tests/"):
            cited |= set(re.findall(r"\bR\d\d\b", text))
    for case in sorted(cases - cited):
        yield f"{CASES}: no test cites {case}"
    for case in sorted(cited - cases):
        yield f"{CASES}: {case} is cited, but not there"


def check(root):
    found = 0
    texts = {}
    for folder in ["framework", "models", "checkpoints", "launch", "tests", "configs"]:
        for file in sorted(pathlib.Path(root, folder).rglob("*")):
            if file.suffix in {".h", ".cpp", ".cu", ".cuh", ".py", ".sh", ".md", ".txt"}:
                texts[file.relative_to(root).as_posix()] = file.read_text()
    for file in sorted(pathlib.Path(root).glob("*.md")):
        texts[file.name] = file.read_text()
    for problem in problems_of_references(texts) if CASES in texts else []:
        print(problem)
        found += 1
    for folder in ["framework", "models", "checkpoints", "launch", "tests"]:
        for file in sorted(pathlib.Path(root, folder).rglob("*")):
            if file.suffix not in {".h", ".cpp", ".cu"}:
                continue
            path = file.relative_to(root).as_posix()
            for line, problem in problems_of(path, file.read_text()):
                print(f"{path}:{line}: {problem}")
                found += 1
    return found


def self_test():
    mistakes = {
        "framework/ops/a.h": '#include "framework/nn/context.h"\n',
        "framework/comm/a.h": '#include "framework/ops/matmul/matmul.h"\n',
        "models/a/b.h": '#include "checkpoints/format.h"\n',
        "framework/nn/a.h": '#include "context.h"\n',
        "framework/base/a.h": "#ifdef FAST\n",
        "launch/a.cpp": "// TO" + "DO\n",
        "launch/common/a.cpp": '#include "launch/train/training.h"\n',
        "checkpoints/a.cpp": "\n" * 501,
        "models/a/d.h": "void f(int a, T* b, F<int, T>&& c,\n       const std::vector<int>& d, int e, G g = {1, 2});\n",
        "models/a/c.cpp": "int f(int a,\n      int b) {\n" + "  ++a;\n" * 68 + "}\n",
    }
    fine = {
        "framework/train/a.h": '#include "framework/nn/model.h"\n#include "framework/train/hook.h"\n#include <vector>\n',
        "models/a/d.h": "void f(int a, const F<int, T>& b, int c, int d, G e = {1, 2}) {\n  g(a, b, *c, {d, 2}, e, h(1));\n}\n",
        "models/a/c.cpp": "namespace {\nint f(int a) {\n" + "  ++a;\n" * 68 + "}\n" + "// a\n" * 9 + "}\n",
        "framework/ops/b.cpp": '#include "hwy/foreach_target.h"\n#if HWY_ONCE\n#endif\n',
    }
    for files, expected in [(mistakes, True), (fine, False)]:
        for path, text in files.items():
            if any(problems_of(path, text)) != expected:
                sys.exit(f"{path}: {'no ' if expected else ''}problem found in {text!r}")
    cited = {CASES: "### R01 a\n### R02 b\n", "tests/a.cpp": "// CASES R01, R03", "framework/a.h": "// A.md, B.md", "B.md": ""}
    if len(list(problems_of_references(cited))) != 3:
        sys.exit("a document or a case that is missing was not found")
    with tempfile.TemporaryDirectory() as root, contextlib.redirect_stdout(None):
        pathlib.Path(root, "framework/ops").mkdir(parents=True)
        pathlib.Path(root, "framework/ops/a.h").write_text(mistakes["framework/ops/a.h"])
        if check(root) != 1:
            sys.exit("a file on disk was not checked")


if __name__ == "__main__":
    if sys.argv[1] == "--self-test":
        self_test()
    else:
        sys.exit(min(check(sys.argv[1]), 1))
