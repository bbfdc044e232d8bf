#!/usr/bin/env python3
"""Counts comments, messages, test names and sentences of pages that hide their subject: "what it gives back".

usage: tests/structure/style.py [--check] [--list] [FOLDER...]

Prints the share by folder and the words a sentence. --list prints the lines. --check fails above the limits, which only
go down. docs/archive does not count."""
import pathlib
import re
import subprocess
import sys

# Per cent of each kind, and words a sentence. Messages are strings of four words outside tests.
LIMITS = {"comments": 2.0, "sentences": 1.0, "messages": 1.0, "test names": 0.5}
WORDS = 20.0
ROOT = pathlib.Path(__file__).resolve().parents[2]
PRONOUNS = r"nobody|somebody|whoever|whatever it|of which|of whom|that which|those that|so-manieth"
CLAUSES = r"what (?:is|are|was|were|has|have|had|it|they|the|a|an|comes|goes|stays|lies|stands)"
HIDDEN = re.compile(rf"^(?:What|Who|Whose|Whoever|Whatever|Nobody|Somebody|Of which|That which)\b"
                    rf"|\b(?:{PRONOUNS}|(?:is|are|was) what|{CLAUSES})\b")
TEST_NAME = re.compile(r"\b(?:TYPED_)?TEST(?:_[FP])?\(\s*(\w+),\s*(\w+)\s*\)")
HIDDEN_NAME = re.compile(r"^(?:Of|That|As)(?=[A-Z])|(?:What|Whom?|Whose|Whoever|Whatever|Nobody|Somebody)(?![a-z])")


def files(*patterns):
    listed = subprocess.run(["git", "-c", f"safe.directory={ROOT}", "ls-files", *patterns], cwd=ROOT, text=True,
                            capture_output=True)
    if listed.returncode == 0: return listed.stdout.split()
    return sorted(str(path.relative_to(ROOT)) for pattern in patterns for path in ROOT.rglob(pattern)
                  if path.relative_to(ROOT).parts[0] != "build")


def comments(text):
    """(line, text) of comments; neighboring lines are one."""
    block, begin = [], 0
    for number, line in enumerate(text.split("\n"), 1):
        whole = re.match(r"\s*//[/!]?\s?(.*)", line)
        if whole and not re.match(r"\s*//\s*(?:NOLINT|clang-format|namespace)", line):
            if not block: begin = number
            block.append(whole.group(1))
            continue
        if block: yield begin, " ".join(block)
        block = []
        if tail := re.search(r"[;{},)]\s+//\s?(.*)$", line): yield number, tail.group(1)
    if block: yield begin, " ".join(block)


def sentences(text):
    """Of the paragraphs of a page: no code, table, heading or hidden comment."""
    text = re.sub(r"```.*?```|<!--.*?-->", lambda found: "\n" * found.group(0).count("\n"), text, flags=re.S)
    line = 1
    for paragraph in re.split(r"(\n\s*\n)", text):
        if not paragraph.lstrip().startswith(("|", "#", "!")):
            for sentence in re.split(r"(?<=[.!?:])\s+(?=[A-Z`*\[])", " ".join(paragraph.split())):
                if len(sentence.split()) >= 4: yield line, sentence
        line += paragraph.count("\n")


def messages(text):
    """(line, text) of string literals of four words or more."""
    for number, line in enumerate(text.split("\n"), 1):
        if line.lstrip().startswith("//"): continue
        for literal in re.findall(r'"((?:[^"\\\\]|\\\\.)*)"', line):
            if len(literal.split()) >= 4: yield number, literal


def test_names(text):
    """(line, Suite.Name) of the tests of a file."""
    for found in TEST_NAME.finditer(text): yield text.count("\n", 0, found.start()) + 1, found[1] + "." + found[2]


def main():
    chosen = [name for name in sys.argv[1:] if not name.startswith("--")]
    within = lambda path: not chosen or any(path == name or path.startswith(name.rstrip("/") + "/") for name in chosen)
    counts, words = {kind: {} for kind in LIMITS}, 0
    for path in filter(within, files("*.h", "*.cpp", "*.cu", "*.cuh", "*.md")):
        if path.startswith("docs/archive/"): continue
        text = (ROOT / path).read_text(errors="replace")
        folder = path.split("/")[0]
        if path.endswith(".md"): readings = {"sentences": sentences}
        elif folder == "tests": readings = {"comments": comments, "test names": test_names}
        else: readings = {"comments": comments, "messages": messages}
        for kind, reading in readings.items():
            for line, said in reading(text):
                hidden = bool(HIDDEN_NAME.search(said.split(".")[1]) if kind == "test names" else HIDDEN.search(said))
                total, found = counts[kind].get(folder, (0, 0))
                counts[kind][folder] = (total + 1, found + hidden)
                words += len(said.split()) if kind == "sentences" else 0
                if hidden and "--list" in sys.argv: print(f"{path}:{line}: {said[:160]}")
    shares = {}
    for kind, folders in counts.items():
        for folder, (total, found) in sorted(folders.items()):
            print(f"{kind:10} {folder:12} {found:5} of {total:5}  {100.0 * found / total:5.1f} %")
        total, found = map(sum, zip(*folders.values())) if folders else (0, 0)
        shares[kind] = 100.0 * found / max(total, 1)
    length = words / max(sum(total for total, _ in counts["sentences"].values()), 1)
    print(", ".join(f"{kind} {share:.1f} %" for kind, share in shares.items()) + f", {length:.1f} words a sentence")
    if "--check" in sys.argv and (length > WORDS or any(share > LIMITS[kind] for kind, share in shares.items())):
        limits = ", ".join(f"{kind} {limit} %" for kind, limit in LIMITS.items())
        sys.exit(f"limits: {limits}, {WORDS} words a sentence; --list shows them")


if __name__ == "__main__":
    main()
