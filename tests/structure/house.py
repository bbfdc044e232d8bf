#!/usr/bin/env python3
"""Measures the tree: the numbers of files and lines, the fullest folders, the largest class.

usage: python3 tests/structure/house.py [REVISION...]
       python3 tests/structure/house.py --check

--check lists classes with more than 40 functions, and fails if there is one; the structure test checks other limits.
Without --check, prints a column for each git revision, or one for the working tree. Sources are .h .cpp .cu .cuh
outside tests/. Public headers are those that poolgrad.h reaches. The functions of a class are those declared or defined
in its body, including operators and constructors. A repeated run is six consecutive lines of code that also occur
elsewhere, without regard to blanks.
"""
import collections
import pathlib
import re
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOURCES = (".h", ".cpp", ".cu", ".cuh")
RUN = 6
MOST_FUNCTIONS = 40


def git(*command):
    return subprocess.run(["git", *command], cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout


def read_tree(revision):
    """Maps each listed path to its text; a binary file is empty."""
    if revision is None:
        names = git("ls-files", "-co", "--exclude-standard", "-z").decode().split("\0")
        return {name: (ROOT / name).read_text(errors="replace") for name in names if name and (ROOT / name).is_file()}
    names = git("ls-tree", "-r", "--name-only", "-z", revision).decode().split("\0")
    asked = "".join(f"{revision}:{name}\n" for name in names if name).encode()
    answer = subprocess.run(["git", "cat-file", "--batch"], cwd=ROOT, input=asked, check=True, stdout=subprocess.PIPE)
    files, at = {}, 0
    for name in filter(None, names):
        end = answer.stdout.index(b"\n", at)
        size = int(answer.stdout[at:end].split()[-1])
        files[name] = answer.stdout[end + 1:end + 1 + size].decode(errors="replace")
        at = end + 1 + size + 1
    return files


def without_comments(text):
    return re.sub(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'',
                  lambda found: '""' if found.group()[0] in "\"'" else " ", text, flags=re.S)


def classes(text):
    """Returns (name, number of functions) of every class and struct with a body."""
    text = without_comments(text)
    for found in re.finditer(r"\b(?:class|struct)\s+(?:\[\[\w+\]\]\s*)?(?:alignas\([^)]*\)\s*)?([\w:]+)[^;{}()]*\{", text):
        depth, at, own = 1, found.end(), []
        while depth > 0 and at < len(text):
            if text[at] == "{":
                depth += 1
                own.append("{" if depth == 2 else "")
            elif text[at] == "}":
                depth -= 1
                own.append("};" if depth == 1 else "")
            elif depth == 1:
                own.append(text[at])
            at += 1
        yield found.group(1), sum(map(is_function, re.split(r";|\b(?:public|private|protected)\s*:", "".join(own))))


def is_function(declaration):
    declaration = declaration.strip()
    if not declaration or re.match(r"(using|friend|typedef|static_assert|class|struct|enum|union)\b", declaration):
        return False
    head = re.split(r"=(?!=)(?!\s*(?:default|delete|0)\b)", declaration.replace("operator==", "operator"))[0]
    return re.search(r"[\w>=\]!+*/<-]\s*\(", head) is not None


def reached(files, start):
    found, todo = set(), [start]
    while todo:
        for name in re.findall(r'^#include "([^"]+)"', files.get(todo.pop(), ""), re.M):
            if name in files and name not in found:
                found.add(name)
                todo.append(name)
    return found


def repeated_runs(sources):
    where = collections.defaultdict(list)
    for name, text in sources.items():
        lines = [re.sub(r"\s+", " ", line).strip() for line in text.splitlines()]
        lines = [line for line in lines if len(line) > 3 and not line.startswith(("#include", "//"))]
        for at in range(len(lines) - RUN + 1):
            where["\n".join(lines[at:at + RUN])].append((name, at))
    return sum(len(places) - 1 for places in where.values() if len(places) > 1)


def measure(revision):
    files = read_tree(revision)
    sources = {name: text for name, text in files.items() if name.endswith(SOURCES) and not name.startswith("tests/")}
    lengths = {name: text.count("\n") for name, text in sources.items()}
    folders = collections.defaultdict(set)
    for name in files:
        if not name.startswith("tests/"):
            parts = name.split("/")
            for depth in range(1, len(parts)):
                folders["/".join(parts[:depth])].add(parts[depth])
    fullest = sorted(folders.items(), key=lambda folder: -len(folder[1]))
    largest = max(lengths, key=lengths.get)
    most = max((number, name) for text in sources.values() for name, number in classes(text))
    return [
        ("source files outside tests", str(len(sources))),
        ("lines in them", f"{sum(lengths.values()):,}"),
        ("median of a file", f"{statistics.median(lengths.values()):.0f}"),
        ("largest file", f"{lengths[largest]} {largest}"),
        ("folders of more than 25 entries", str(sum(len(entries) > 25 for _, entries in fullest))),
        *[(f"{place} fullest folder", f"{len(entries)} {name}/") for place, (name, entries) in
          zip(("the", "second", "third"), fullest)],
        ("public headers", str(len(reached(files, "poolgrad.h")))),
        ("functions of the largest class", f"{most[0]} {most[1]}"),
        ("repeated runs of six lines", str(repeated_runs(sources))),
        ("test files", str(sum(name.startswith("tests/") and name.endswith(SOURCES) for name in files))),
        ("tests written down", str(sum(len(re.findall(r"^(?:TYPED_)?TEST(?:_[FP])?\(", text, re.M))
                                       for name, text in files.items() if name.startswith("tests/")))),
    ]


def check():
    crowded = [(number, name, file) for file, text in read_tree(None).items()
               if file.endswith(SOURCES) and not file.startswith("tests/")
               for name, number in classes(text) if number > MOST_FUNCTIONS]
    for number, name, file in crowded:
        print(f"{file}: {name} has {number} functions, limit {MOST_FUNCTIONS}")
    sys.exit(bool(crowded))


def main():
    if sys.argv[1:] == ["--check"]:
        check()
    if any(argument.startswith("-") for argument in sys.argv[1:]):
        sys.exit(__doc__)
    revisions = sys.argv[1:] or [None]
    columns = [measure(revision) for revision in revisions]
    table = [["", *[revision or "working tree" for revision in revisions]]]
    table += [[name, *[column[row][1] for column in columns]] for row, (name, _) in enumerate(columns[0])]
    widths = [max(map(len, column)) for column in zip(*table)]
    for line in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip())


if __name__ == "__main__":
    main()
