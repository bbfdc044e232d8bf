#!/usr/bin/env python3
"""Counts comments and sentences of pages that hide their subject: "what it gives back", "nobody waits for it".

usage: tests/structure/style.py [--check] [--list] [FOLDER...]

Prints the share by folder and the words a sentence. --list prints the lines. --check fails above the limits, which only
go down. docs/archive does not count."""
import pathlib
import re
import subprocess
import sys

COMMENTS, SENTENCES, WORDS = 2.0, 1.0, 20.0  # per cent, per cent, words a sentence
ROOT = pathlib.Path(__file__).resolve().parents[2]
PRONOUNS = r"nobody|somebody|whoever|whatever it|of which|of whom|that which|those that|so-manieth"
CLAUSES = r"what (?:is|are|was|were|has|have|had|it|they|the|a|an|comes|goes|stays|lies|stands)"
HIDDEN = re.compile(rf"^(?:What|Who|Whose|Whoever|Whatever|Nobody|Somebody|Of which|That which)\b"
                    rf"|\b(?:{PRONOUNS}|(?:is|are|was) what|{CLAUSES})\b")


def files(*patterns):
    listed = subprocess.run(["git", "-c", f"safe.directory={ROOT}", "ls-files", *patterns], cwd=ROOT, text=True,
                            capture_output=True)
    if listed.returncode == 0: return listed.stdout.split()
    return sorted(str(path.relative_to(ROOT)) for pattern in patterns for path in ROOT.rglob(pattern)
                  if path.relative_to(ROOT).parts[0] != "build")


def comments(text):
    """(line, text) of comments; neighbouring lines are one."""
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


def main():
    chosen = [name for name in sys.argv[1:] if not name.startswith("--")]
    within = lambda path: not chosen or any(path == name or path.startswith(name.rstrip("/") + "/") for name in chosen)
    counts, words = {}, 0
    for path in filter(within, files("*.h", "*.cpp", "*.cu", "*.cuh", "*.md")):
        page = path.endswith(".md")
        if page and path.startswith("docs/archive/"): continue
        text = (ROOT / path).read_text(errors="replace")
        key = "pages" if page else path.split("/")[0]
        for line, said in (sentences if page else comments)(text):
            hidden = bool(HIDDEN.search(said))
            total, found = counts.get(key, (0, 0))
            counts[key] = (total + 1, found + hidden)
            words += len(said.split()) if page else 0
            if hidden and "--list" in sys.argv: print(f"{path}:{line}: {said[:160]}")
    share = lambda total, found: 100.0 * found / max(total, 1)
    for key, count in sorted(counts.items()): print(f"{key:12} {count[1]:5} of {count[0]:5}  {share(*count):5.1f} %")
    pages = counts.pop("pages", (0, 0))
    source = tuple(map(sum, zip(*counts.values()))) or (0, 0)
    length = words / max(pages[0], 1)
    print(f"comments {share(*source):.1f} %, sentences {share(*pages):.1f} %, {length:.1f} words a sentence")
    if "--check" in sys.argv and (share(*source) > COMMENTS or share(*pages) > SENTENCES or length > WORDS):
        sys.exit(f"limits: comments {COMMENTS} %, sentences {SENTENCES} %, {WORDS} words a sentence; --list shows them")


if __name__ == "__main__":
    main()
