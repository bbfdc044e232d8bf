#!/usr/bin/env python3
"""Plants one mutant after another in a copy of the tree and says which the tests catch.

usage: ./run mutants [FLOOR] [--only TEXT] [--list] [--check]

Each mutant of tests/mutants/FLOOR.txt is a small fault with a meaning (an edge off by one, a wrong sign, a missing wait)
and names the test that must fail with it. An entry is a paragraph:

    what: of two pending blocks that fit the larger is taken
    file: allocator/pool/streams.cpp
    find: block->size < best->block->size
    replace: block->size > best->block->size
    test: allocator_pool_test StreamOrder.*

`find` occurs once in the file (--check says where it does not; the suite runs that too); where it is several lines,
they come after `find:`, each with a | before it, and so do those of `replace`. `test` is a program, and what of it is
run; with mpirun before it, of three ranks. A test that does not end counts as failed; a mutant that does not compile counts as none.

The copy and its build are in build/mutants; the tree itself is only read. Fails where a mutant survives.
"""
import argparse
import os
import pathlib
import re
import resource
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
LISTS = ROOT / "tests" / "mutants"
FLOORS = ["allocator", "kernels", "tensor", "autograd", "nn", "attention", "parallel", "examples"]
KEYS = ["what", "file", "find", "replace", "test"]
COPY = ROOT / "build" / "mutants" / "tree"
BUILD = ROOT / "build" / "mutants" / "build"
JOBS = os.environ.get("POOLGRAD_JOBS") or str(os.cpu_count())


def read_list(floor):
    """The entries of a floor's list: dictionaries with KEYS and 'at', where the entry is."""
    path = LISTS / f"{floor}.txt"
    entries, entry, key = [], None, None
    for number, line in enumerate([*path.read_text().splitlines(), ""], 1):
        at = f"{path.relative_to(ROOT)}:{number}"
        if line.startswith("#"):
            continue
        if not line.strip():
            if entry is not None and sorted(entry) != sorted([*KEYS, "at"]):
                sys.exit(f"{entry['at']}: an entry has {', '.join(KEYS)}, each once")
            entry = None
        elif line.startswith("|") and entry is not None and key in ("find", "replace"):
            entry[key] += ("\n" if entry[key] else "") + line[1:]
        else:
            key, colon, value = line.partition(":")
            if not colon or key not in KEYS or (entry is not None and key in entry):
                sys.exit(f"{at}: neither one of {', '.join(KEYS)} nor the next line of one: {line}")
            if entry is None:
                entry = {"at": at}
                entries.append(entry)
            entry[key] = value.removeprefix(" ")
    return entries


def program_of(test):
    return test.removeprefix("mpirun ").split()[0]


def fault(entry):
    """Why the entry cannot be planted, or None."""
    path = ROOT / entry["file"]
    if not path.is_file():
        return f"there is no {entry['file']}"
    found = path.read_text().count(entry["find"])
    if not entry["find"].strip() or found != 1:
        return f"what to replace occurs {found} times in {entry['file']}: {entry['find']}"
    if entry["find"] == entry["replace"]:
        return "replaces its text by itself"
    program = program_of(entry["test"])
    if program not in programs():
        return f"there is no test program {program}"
    return None


def programs():
    """The test programs: what poolgrad_tests(<folder> [AS <part>] ...) makes of the tests in a folder, and others."""
    if not hasattr(programs, "names"):
        calls = re.compile(r"^\s*\w+_tests\((\S+)(?: AS (\w+))?", re.M)
        others = re.compile(r"^\s*add_executable\((\w+_test) ", re.M)
        lists = [path.read_text() for path in (ROOT / "tests").rglob("CMakeLists.txt")]
        programs.names = {
            "_".join([folder.replace("/", "_"), *filter(None, [part]), "test"])
            for text in lists for folder, part in calls.findall(text)
        } | {name for text in lists for name in others.findall(text)}
    return programs.names


def run(command, **options):
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)


def copy_tree():
    """Brings the copy up to date; what is equal keeps its time, so that a second run builds little."""
    listed = run(["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, check=True).stdout.split("\0")
    names = {name for name in listed if name and (ROOT / name).is_file()}
    for path in [path for path in COPY.rglob("*") if path.is_file()] if COPY.exists() else []:
        if str(path.relative_to(COPY)) not in names:
            path.unlink()
    for name in names:
        source, target = ROOT / name, COPY / name
        # The warnings about what a mutant leaves unused are no matter here.
        text = source.read_bytes()
        if name == "cmake/PoolgradOptions.cmake":
            text = text.replace(b" -Werror", b"")
        if not target.exists() or target.read_bytes() != text:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(text)
            shutil.copymode(source, target)


def configure():
    # Files alone, so that a mutant costs one of them; optimised less, since more is compiled here than run.
    options = ["-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_CXX_FLAGS_RELEASE=-O1", "-DPOOLGRAD_UNITY=OFF",
               "-DPOOLGRAD_BUILD_BENCHMARKS=OFF", "-DPOOLGRAD_CUDA=OFF"]
    if shutil.which("ccache") and "CMAKE_CXX_COMPILER_LAUNCHER" not in os.environ:
        options.append("-DCMAKE_CXX_COMPILER_LAUNCHER=ccache")
    options += os.environ.get("POOLGRAD_CMAKE_OPTIONS", "").split()
    result = run(["cmake", "-G", "Ninja", "-S", str(COPY), "-B", str(BUILD), *options])
    if result.returncode != 0:
        sys.exit(result.stdout)


def build(targets):
    return run(["cmake", "--build", str(BUILD), "--parallel", JOBS, "--target", *targets])


def limit_memory():
    resource.setrlimit(resource.RLIMIT_DATA, (8 << 30, 8 << 30))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def run_test(test, seconds):
    """'passed', 'failed' or 'hung', and what it said."""
    program, *filters = test.removeprefix("mpirun ").split()
    folder = next(BUILD.joinpath("tests").rglob(program)).parent
    command = [f"./{program}", "--gtest_brief=1", *(f"--gtest_filter={f}" for f in filters)]
    # A seed, so that a run can be repeated; attention's tests take one thread, as under ctest.
    environment = {"POOLGRAD_TEST_SEED": "20261121", **os.environ}
    if program.startswith(("attention_", "parallel_")):
        environment["POOLGRAD_THREADS"] = "1"
    if test.startswith("mpirun "):
        command = ["mpirun", "-n", "3", *command]
        environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                        "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_btl_vader_single_copy_mechanism": "none"}
    process = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               text=True, errors="replace", preexec_fn=limit_memory, start_new_session=True)
    try:
        said = process.communicate(timeout=seconds)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        return "hung", process.communicate()[0]
    if process.returncode == 0 and not re.search(r"\[  PASSED  \] [1-9]", said):
        return "failed", f"no test of {test} ran\n{said}"
    return "passed" if process.returncode == 0 else "failed", said


def baseline(entries):
    """Builds and runs the tests without any mutant; their seconds. Ends the program where one fails."""
    tests = sorted({entry["test"] for entry in entries})
    print(f"building {len({program_of(test) for test in tests})} test programs without mutants", flush=True)
    built = build(sorted({program_of(test) for test in tests}))
    if built.returncode != 0:
        sys.exit(built.stdout[-4000:])
    seconds = {}
    for test in tests:
        start = time.monotonic()
        outcome, said = run_test(test, 600)
        if outcome != "passed":
            sys.exit(f"{test} {outcome} without a mutant:\n{said[-4000:]}")
        seconds[test] = time.monotonic() - start
    return seconds


def plant(entry, seconds):
    """'caught', 'hung', 'survived' or 'does not compile'."""
    path = COPY / entry["file"]
    text = path.read_text()
    try:
        path.write_text(text.replace(entry["find"], entry["replace"]))
        built = build([program_of(entry["test"])])
        if built.returncode != 0:
            return "does not compile", built.stdout
        outcome, said = run_test(entry["test"], 20 + 10 * seconds)
        return {"failed": "caught", "hung": "hung", "passed": "survived"}[outcome], said
    finally:
        path.write_text(text)


def main():
    parser = argparse.ArgumentParser(prog="./run mutants", description="Plants mutants; fails where one survives.")
    parser.add_argument("floor", nargs="?", choices=FLOORS, help="only the mutants of this floor")
    parser.add_argument("--only", default="", metavar="TEXT", help="only those whose description or file contains TEXT")
    parser.add_argument("--list", action="store_true", help="list the mutants")
    parser.add_argument("--check", action="store_true", help="only check that every entry can be planted")
    options = parser.parse_args()
    lists = {floor: read_list(floor) for floor in ([options.floor] if options.floor else FLOORS)}
    stale = 0
    for entries in lists.values():
        for entry in entries:
            reason = fault(entry)
            if reason:
                stale += 1
                print(f"stale: {entry['at']}: {reason}")
    count = sum(map(len, lists.values()))
    if options.check or stale:
        print(f"{count - stale} of {count} mutants can be planted")
        sys.exit(stale != 0)
    lists = {floor: [e for e in entries if options.only in e["what"] or options.only in e["file"]]
             for floor, entries in lists.items()}
    if options.list:
        for floor, entries in lists.items():
            for entry in entries:
                print(f"{floor}: {entry['what']} ({entry['file']})")
        return

    copy_tree()
    configure()
    seconds = baseline([entry for entries in lists.values() for entry in entries])
    scores, weak = {}, []
    for floor, entries in lists.items():
        caught = 0
        for entry in entries:
            outcome, said = plant(entry, seconds[entry["test"]])
            print(f"{outcome}: {floor}: {entry['what']}", flush=True)
            if outcome in ("caught", "hung"):
                caught += 1
            else:
                weak.append((outcome, entry))
                if outcome == "does not compile":
                    print(said[-2000:])
        if entries:
            scores[floor] = (caught, len(entries))
    print()
    for outcome, entry in weak:
        print(f"{outcome}: {entry['what']} ({entry['at']}), by {entry['test']}")
    for floor, (caught, of) in scores.items():
        print(f"{floor:10} {caught} of {of} caught")
    print(f"{'in all':10} {sum(c for c, _ in scores.values())} of {sum(n for _, n in scores.values())} caught")
    sys.exit(bool(weak))


if __name__ == "__main__":
    main()
