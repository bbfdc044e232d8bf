#!/usr/bin/env python3
"""Compares the report of ptxas on every kernel with a table: no stack, no spills, no more registers than there. The
kernels that SPILLING names may have some bytes of stack, which they use once a visit.

usage: device_code_report.py --sources FOLDER --table FILE --nvcc VERSION [--write] OBJECT...
       device_code_report.py --sources FOLDER --compile NVCC --architecture sm_80

Beside each object lies OBJECT.ptxas, the output of `ptxas -v` (cmake/keep_ptxas_report.sh). Every .cu file below FOLDER
must have an object. A message of ptxas that it serialised wgmma or ignored setmaxnreg (C7508, C7510 to C7518, C7520) is
a fault. The table has a row for each kernel. --write writes the table; its difference shows the kernels that take more.
Other versions of nvcc allocate registers differently and may name instances differently. If the table is of another
version or architecture, the script checks only stack and spills, and the output says so.

--compile compiles every .cu file for an architecture of which the build has only PTX, without a report of ptxas. It
checks stack and spills.
"""
import argparse
import pathlib
import re
import subprocess
import sys
import tempfile
from typing import NamedTuple

ENTRY = re.compile(r"ptxas info\s*: Compiling entry function '(\w+)' for '(\w+)'")
FUNCTION = re.compile(r"ptxas info\s*: Function properties for (\w+)")
FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
REGISTERS = re.compile(r"ptxas info\s*: Used (\d+) registers")
SPILLING = re.compile(r"(attend|sum)_by_fragments<(float, |\w+, 128).*>|attend_by_warpgroup<\w+, (32|64)>")
MOST_STACK = 256
LOST = re.compile(r"ptxas \w+\s*: (\(C75(?:08|1[0-8]|20)\).*)")
HEAD = ("# The report of ptxas on every kernel. The target device_code_table writes it, and the test\n"
        "# DeviceCode.StaysWithinItsTable compares builds with it (tests/kernels/cuda/device_code_report.py).\n")


class Taken(NamedTuple):
    registers: int  # 0 for a function that kernels call, which has no row
    stack: int
    spills: int  # bytes stored and loaded


def read_report(text):
    """architecture -> mangled name -> Taken, of all functions."""
    found, architecture, name, frame = {}, "", None, None
    for line in text.splitlines():
        if match := ENTRY.match(line):
            name, architecture = match.groups()
            frame = (0, 0)
        elif match := FUNCTION.match(line):
            name = match.group(1)
        elif match := FRAME.search(line):
            stack, stores, loads = map(int, match.groups())
            frame = (stack, stores + loads)
            found.setdefault(architecture, {})[name] = Taken(0, *frame)
        elif match := REGISTERS.match(line):
            entry = found.setdefault(architecture, {})
            entry[name] = Taken(int(match.group(1)), *entry.get(name, (0, *frame))[1:])
    return found


def read_lost(text):
    """Returns the messages of ptxas about asynchronous products that it serializes."""
    return [match.group(1) for line in text.splitlines() if (match := LOST.match(line))]


def without_arguments(name):
    """Less the arguments of a function, which its template arguments tell again."""
    depth = 0
    for at in range(len(name) - 1, -1, -1):
        depth += {")": 1, "(": -1}.get(name[at], 0)
        if depth == 0:
            return name[:at] if name.endswith(")") and at > 0 else name
    return name


def readable(mangled):
    """As one would write them: without namespaces, result and arguments."""
    given = "\n".join(mangled) + "\n"
    names = subprocess.run(["c++filt"], input=given, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    short = []
    for name in names:
        name = name.replace("(anonymous namespace)::", "")
        name = re.sub(r"^void ", "", without_arguments(name))
        name = re.sub(r"\bpoolgrad::|\bkernels::|\bcuda::", "", name)
        name = re.sub(r"\b(\d+)u?l\b", r"\1", name).replace("> >", ">>").replace("> >", ">>")
        short.append(re.sub(r"\((?:unsigned )?(?:int|long)\)", "", name))
    return dict(zip(mangled, short))


def read_objects(sources, objects):
    """architecture -> (file, kernel) -> Taken; and sentences about files that are not compiled, or not as written."""
    kernels, faults = {}, []
    left = list(objects)
    for source in sorted(sources.rglob("*.cu")):
        file = source.relative_to(sources).as_posix()
        of_file = [o for o in left if o.endswith("/" + file + ".o")]
        if not of_file:
            faults.append(f"{file} is not compiled: it is not among POOLGRAD_CUDA_SOURCES")
            continue
        shortest = min(of_file, key=len)
        left.remove(shortest)
        text = pathlib.Path(shortest + ".ptxas").read_text()
        faults += [f"{file}: {line}" for line in read_lost(text)]
        add_report(kernels, file, text)
    return kernels, faults


def add_report(kernels, file, text):
    for architecture, functions in read_report(text).items():
        names, own = readable(list(functions)), kernels.setdefault(architecture, {})
        for mangled, taken in functions.items():
            key = (file, names[mangled])
            own[(file, mangled) if key in own else key] = taken  # two names that read alike


def compile_sources(sources, nvcc, architecture):
    """As read_objects(), but compiles the sources now, for one architecture."""
    kernels, faults = {}, []
    with tempfile.TemporaryDirectory() as folder:
        for source in sorted(sources.rglob("*.cu")):
            file = source.relative_to(sources).as_posix()
            command = [nvcc, "-std=c++20", "-O3", "-DNDEBUG", "--expt-relaxed-constexpr", "-Xptxas=-v", "-cubin",
                       "-gencode", f"arch={architecture.replace('sm_', 'compute_')},code={architecture}",
                       "-I" + str(sources.parents[1]), "-o", folder + "/cubin", str(source)]
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            if done.returncode:
                faults.append(f"{file} does not compile:\n{done.stdout}")
            add_report(kernels, file, done.stdout)
    return kernels, faults


def with_memory(kernels):
    """Sentences about kernels with a stack or spills that they may not have."""
    return [f"{file}: {name} has a stack of {taken.stack} bytes and {taken.spills} bytes of spills"
            for (file, name), taken in sorted(kernels.items())
            if taken.stack > (MOST_STACK if SPILLING.fullmatch(name) else 0) or
            (taken.spills and not SPILLING.fullmatch(name))]


def read_table(text):
    """(version of nvcc, architecture, (file, kernel) -> Taken)."""
    rows, version, architecture, file = {}, "", "", ""
    for line in filter(None, text.splitlines()):
        if line.startswith("#"):
            continue
        if match := re.fullmatch(r"nvcc (\S+), (\S+): registers, stack, spills", line):
            version, architecture = match.groups()
        elif not line.startswith(" "):
            file = line
        else:
            registers, stack, spills, name = line.split(None, 3)
            rows[(file, name)] = Taken(int(registers), int(stack), int(spills))
    return version, architecture, rows


def written_table(version, architecture, rows):
    lines, file = [HEAD + f"nvcc {version}, {architecture}: registers, stack, spills"], ""
    for (of_file, name), taken in sorted(rows.items()):
        if not taken.registers:
            continue
        if of_file != file:
            lines += ["", of_file]
            file = of_file
        lines.append(f"{taken.registers:5} {taken.stack} {taken.spills}  {name}")
    return "\n".join(lines) + "\n"


def findings(version, kernels, table):
    """Returns (faults, notes) of the compiled kernels, compared with the table."""
    of_nvcc, of_architecture, rows = table
    faults, notes = [], []
    for architecture, own in sorted(kernels.items()):
        bad = with_memory(own)
        own = {key: taken for key, taken in own.items() if taken.registers}
        if architecture != of_architecture:
            notes.append(f"{architecture}: {len(own)} kernels, {len(bad)} with a stack or spills, which the table, of "
                         f"{of_architecture}, does not hold")
            notes += bad
            continue
        faults += bad
        if version != of_nvcc:
            notes.append(f"{architecture}: {len(own)} kernels by nvcc {version} are held to no stack and no spills only: "
                         f"the registers of the table are those of nvcc {of_nvcc}")
            continue
        for key in sorted(own.keys() | rows.keys()):
            file, name = key
            if key not in rows:
                faults.append(f"{file}: {name} is not in the table, it takes {own[key].registers} registers")
            elif key not in own:
                faults.append(f"{file}: {name} is in the table and was not compiled")
            elif own[key].registers > rows[key].registers:
                faults.append(f"{file}: {name} takes {own[key].registers} registers, the table says "
                              f"{rows[key].registers}")
        fewer = sum(key in rows and own[key].registers < rows[key].registers for key in own)
        notes.append(f"{architecture}: {len(own)} kernels by nvcc {version}, {fewer} of them with fewer registers than "
                     "the table says")
    if of_architecture not in kernels:
        faults.append(f"nothing was compiled for {of_architecture}, which the table is for")
    return faults, notes


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--sources", type=pathlib.Path, required=True)
    parser.add_argument("--table", type=pathlib.Path)
    parser.add_argument("--nvcc", default="", help="its version")
    parser.add_argument("--architecture", default="sm_90a", help="of the table that is written, or to compile for")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--compile", metavar="NVCC")
    parser.add_argument("objects", nargs="*")
    given = parser.parse_args()
    if given.compile:
        kernels, faults = compile_sources(given.sources, given.compile, given.architecture)
        own = kernels.get(given.architecture, {})
        notes = [f"{given.architecture}: {sum(taken.registers > 0 for taken in own.values())} kernels"]
        faults += with_memory(own)
    else:
        version = ".".join(given.nvcc.split(".")[:2])
        kernels, lost = read_objects(given.sources, given.objects)
        if given.write:
            given.table.write_text(written_table(version, given.architecture, kernels[given.architecture]))
        faults, notes = findings(version, kernels, read_table(given.table.read_text()))
        faults = lost + faults
    for line in notes + faults:
        print(line)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
