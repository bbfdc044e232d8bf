#!/usr/bin/env python3
"""Plants one mutant after another in a copy of the tree and reports which of them the tests catch.

usage: ./run mutants [FLOOR] [--only TEXT] [--list] [--check]

Each mutant of tests/mutants/FLOOR.txt is a small, meaningful fault (an edge off by one, a wrong sign, a missing wait),
with the test that must fail. An entry is a paragraph:

    what: the larger of two pending blocks that fit is taken
    file: allocator/pool/streams.cpp
    find: block->size < best->block->size
    replace: block->size > best->block->size
    test: allocator_pool_test StreamOrder.*

`find` must occur exactly once in the file; --check reports violations, and the test suite runs it. Several lines of
`find` or `replace` follow the keyword, each after a |. `test` is a program and a filter of its tests; `mpirun` before
it starts three ranks. A test that hangs counts as failed; a mutant that does not compile does not count.

The copies and their builds are in build/mutants, one for each core, or as many as POOLGRAD_JOBS. The tree itself does
not change. A compiler cache serves unchanged files and the other copies. Fails if a mutant survives.
"""
import argparse
import concurrent.futures
import os
import pathlib
import queue
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
JOBS = int(os.environ.get("POOLGRAD_JOBS") or os.cpu_count())


def read_list(floor):
    """Returns the entries of a layer's list: dictionaries with KEYS, and 'at', the place of the entry."""
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
    """Returns why the entry cannot be planted, or None."""
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
    """Returns the test programs: those of poolgrad_tests(<folder> [AS <part>] ...), and others."""
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


def limit_memory():
    resource.setrlimit(resource.RLIMIT_DATA, (8 << 30, 8 << 30))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


class Workplace:
    """A copy of the tree and its build, in which one mutant at a time is planted."""

    def __init__(self, number):
        self.root = ROOT / "build" / "mutants" / str(number)
        self.tree, self.build = self.root / "tree", self.root / "build"
        # Paths below the root are relative to it, so that workplaces share cached compilations.
        self.environment = {"CCACHE_BASEDIR": str(self.root), "CCACHE_NOHASHDIR": "1", **os.environ}

    def copy_tree(self):
        """Updates the copy; equal files keep their time, so that a second run builds little."""
        listed = run(["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, check=True).stdout.split("\0")
        names = {name for name in listed if name and (ROOT / name).is_file()}
        for path in [path for path in self.tree.rglob("*") if path.is_file()] if self.tree.exists() else []:
            if str(path.relative_to(self.tree)) not in names:
                path.unlink()
        for name in names:
            source, target = ROOT / name, self.tree / name
            # A mutant may leave a name unused: that warning does not matter here.
            text = source.read_bytes()
            if name == "cmake/PoolgradOptions.cmake":
                text = text.replace(b" -Werror", b"")
            if not target.exists() or target.read_bytes() != text:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(text)
                shutil.copymode(source, target)

    def configure(self):
        # No unity builds, so that a mutant compiles one file. Less optimization, because compiling takes longer than
        # running. One test per program, so that a link does not run it to list its tests.
        options = ["-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_CXX_FLAGS_RELEASE=-O1", "-DPOOLGRAD_UNITY=OFF",
                   "-DPOOLGRAD_BUILD_BENCHMARKS=OFF", "-DPOOLGRAD_CUDA=OFF", "-DPOOLGRAD_TESTS_BY_PROGRAM=ON"]
        if shutil.which("ccache") and "CMAKE_CXX_COMPILER_LAUNCHER" not in os.environ:
            options.append("-DCMAKE_CXX_COMPILER_LAUNCHER=ccache")
        options += os.environ.get("POOLGRAD_CMAKE_OPTIONS", "").split()
        result = run(["cmake", "-G", "Ninja", "-S", str(self.tree), "-B", str(self.build), *options])
        if result.returncode != 0:
            sys.exit(result.stdout)

    def make(self, programs, jobs):
        return run(["cmake", "--build", str(self.build), "--parallel", str(jobs), "--target", *programs],
                   env=self.environment)

    def run_test(self, test, seconds):
        """Returns 'passed', 'failed' or 'hung', and the output."""
        program, *filters = test.removeprefix("mpirun ").split()
        folder = next(self.build.joinpath("tests").rglob(program)).parent
        command = [f"./{program}", "--gtest_brief=1", "--gtest_color=no", *(f"--gtest_filter={f}" for f in filters)]
        # A seed, so that a run can be repeated; attention's tests take one thread, as under ctest.
        environment = {"POOLGRAD_TEST_SEED": "20261121", **os.environ}
        if program.startswith(("attention_", "parallel_")):
            environment["POOLGRAD_THREADS"] = "1"
        if test.startswith("mpirun "):
            command = ["mpirun", "-n", "3", *command]
            environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                            "OMPI_MCA_rmaps_base_oversubscribe": "1",
                            "OMPI_MCA_btl_vader_single_copy_mechanism": "none"}
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True, errors="replace", preexec_fn=limit_memory,
                                   start_new_session=True)
        try:
            said = process.communicate(timeout=seconds)[0]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            return "hung", process.communicate()[0]
        if process.returncode == 0 and not re.search(r"\[  PASSED  \] [1-9]", said):
            return "failed", f"no test of {test} ran\n{said}"
        return "passed" if process.returncode == 0 else "failed", said

    def plant(self, entry, seconds):
        """Returns 'caught', 'hung', 'survived' or 'does not compile', and the output."""
        path = self.tree / entry["file"]
        text = path.read_text()
        try:
            path.write_text(text.replace(entry["find"], entry["replace"]))
            built = self.make([program_of(entry["test"])], 1)
            if built.returncode != 0:
                return "does not compile", built.stdout
            outcome, said = self.run_test(entry["test"], 20 + 10 * seconds)
            return {"failed": "caught", "hung": "hung", "passed": "survived"}[outcome], said
        finally:
            path.write_text(text)


def prepare(workplaces, tests):
    """Builds the tests in all workplaces and runs them in one, without a mutant. Returns their seconds. Ends the program
    if a test fails."""
    programs = sorted({program_of(test) for test in tests})
    print(f"building {len(programs)} test programs without mutants, {len(workplaces)} times", flush=True)
    for workplace in workplaces:
        workplace.copy_tree()
        workplace.configure()
        built = workplace.make(programs, JOBS)
        if built.returncode != 0:
            sys.exit(built.stdout[-4000:])
    seconds, failures = {}, []
    for test in tests:
        start = time.monotonic()
        outcome, said = workplaces[0].run_test(test, 600)
        if outcome != "passed":
            failures.append(f"{test} {outcome} without a mutant:\n{said[-4000:]}")
        seconds[test] = time.monotonic() - start
    if failures:
        sys.exit("\n".join(failures))
    return seconds


def plant_all(entries):
    """Plants each entry, prints the outcomes in the order of the entries, and returns them."""
    workplaces = [Workplace(number) for number in range(min(JOBS, max(1, len(entries) // 4)))]
    seconds = prepare(workplaces, sorted({entry["test"] for entry in entries}))
    free = queue.SimpleQueue()
    for workplace in workplaces:
        free.put(workplace)

    def plant(entry):
        workplace = free.get()
        try:
            return workplace.plant(entry, seconds[entry["test"]])
        finally:
            free.put(workplace)

    outcomes = []
    with concurrent.futures.ThreadPoolExecutor(len(workplaces)) as pool:
        for entry, (outcome, said) in zip(entries, pool.map(plant, entries)):
            print(f"{outcome}: {entry['floor']}: {entry['what']}", flush=True)
            if outcome == "does not compile":
                print(said[-2000:])
            outcomes.append(outcome)
    return outcomes


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

    entries = [entry | {"floor": floor} for floor, entries in lists.items() for entry in entries]
    outcomes = plant_all(entries)
    print()
    caught = {floor: 0 for floor, entries in lists.items() if entries}
    for entry, outcome in zip(entries, outcomes):
        if outcome in ("caught", "hung"):
            caught[entry["floor"]] += 1
        else:
            print(f"{outcome}: {entry['what']} ({entry['at']}), by {entry['test']}")
    for floor, count in caught.items():
        print(f"{floor:10} {count} of {len(lists[floor])} caught")
    print(f"{'in all':10} {sum(caught.values())} of {len(entries)} caught")
    sys.exit(sum(caught.values()) < len(entries))


if __name__ == "__main__":
    main()
