"""Loads memory snapshots with Python's own pickle (or json) and checks them against the rules of their viewers.

The check rewinds with plain lists, and knows nothing of how the files are written.

    check_snapshot.py FILE|FOLDER...      exit status 1 and one line for each violation
    check_snapshot.py --damaged FILE...   breaks one rule after the other in memory: exit status 1 if one goes unnoticed
"""
import json
import pathlib
import pickle
import pickletools
import sys

KNOWN_OPCODES = {
    "PROTO", "FRAME", "MARK", "EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE", "DICT", "LIST", "TUPLE", "TUPLE1", "TUPLE2",
    "TUPLE3", "SETITEM", "SETITEMS", "APPEND", "APPENDS", "BINUNICODE", "SHORT_BINUNICODE", "BININT", "BININT1",
    "BININT2", "LONG1", "BINFLOAT", "NEWTRUE", "NEWFALSE", "NONE", "BINPUT", "LONG_BINPUT", "BINGET", "LONG_BINGET",
    "MEMOIZE", "STOP"}
ACTIONS = {"alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map", "segment_unmap",
           "snapshot", "oom"}
SETTINGS = {"PYTORCH_CUDA_ALLOC_CONF": str, "expandable_segments": bool, "max_split_size": int,
            "garbage_collection_threshold": float, "roundup_power2_divisions": dict, "trace_alloc_overflowed": bool}


def check_opcodes(data):
    """The pickle uses only what the viewer's machine knows; lists are filled in batches of at most 1000."""
    stack = []  # heights: one number for each mark
    height = 0
    names = set()
    for opcode, argument, position in pickletools.genops(data):
        names.add(opcode.name)
        if opcode.name not in KNOWN_OPCODES:
            yield f"byte {position}: opcode {opcode.name}"
        if opcode.name == "PROTO" and argument > 4:
            yield f"protocol {argument}"
        if opcode.name == "LONG1" and data[position + 1] > 8:
            yield f"byte {position}: an integer of {data[position + 1]} bytes"
        if opcode.name == "MARK":
            stack.append(height)
        elif opcode.name in ("APPENDS", "SETITEMS", "TUPLE", "LIST", "DICT"):
            items = height - stack.pop()
            height -= items
            if opcode.name == "APPENDS" and items > 1000:
                yield f"byte {position}: a batch of {items} items"
            if opcode.name in ("TUPLE", "LIST", "DICT"):
                height += 1
        else:
            height += len(opcode.stack_after) - len(opcode.stack_before)
    if "MEMOIZE" in names and names & {"BINPUT", "LONG_BINPUT"}:
        yield "two ways of counting memo numbers"


def check_plain(value):
    """Nothing but plain data, all of it of the right kind."""
    todo, seen = [value], set()
    while todo:
        item = todo.pop()
        if isinstance(item, (dict, list, tuple)):
            if id(item) in seen:
                continue
            seen.add(id(item))
        if isinstance(item, dict):
            todo += list(item.keys()) + list(item.values())
        elif isinstance(item, (list, tuple)):
            todo += item
        elif isinstance(item, int):
            if item >= 2**53:
                yield f"number {item} is above 2^53"
        elif not (item is None or isinstance(item, (str, float))):
            yield f"an object of type {type(item).__name__}"


def check_frames(where, item):
    if "frames" not in item:
        yield f"{where}: no frames"
    for frame in item.get("frames", []):
        if not {"name", "filename", "line"} <= frame.keys():
            yield f"{where}: a frame without name, filename or line"


def check_segments(segments):
    end = {}
    for i, s in enumerate(segments):
        where = f"segments[{i}]"
        if s["address"] < end.get(s["device"], 0):
            yield f"{where}: not behind the segment before"
        end[s["device"]] = s["address"] + s["total_size"]
        address = s["address"]
        for block in s["blocks"]:
            if block["address"] != address:
                yield f"{where}: a gap at {address:#x}"
            address += block["size"]
            if block["requested_size"] > block["size"] or block["size"] <= 0:
                yield f"{where}: sizes of the block at {block['address']:#x}"
            if block["state"] == "inactive" and block["requested_size"] != 0:
                yield f"{where}: an inactive block was requested"
            yield from check_frames(f"{where}: the block at {block['address']:#x}", block)
        if address != end[s["device"]]:
            yield f"{where}: blocks end at {address:#x}"
        active = [b for b in s["blocks"] if b["state"] in ("active_allocated", "active_pending_free")]
        sums = {"allocated_size": sum(b["size"] for b in active if b["state"] == "active_allocated"),
                "active_size": sum(b["size"] for b in active),
                "requested_size": sum(b["requested_size"] for b in active)}
        for key, value in sums.items():
            if s[key] != value:
                yield f"{where}: {key} is {s[key]}, its blocks sum to {value}"
        for key in ("stream", "segment_type", "segment_pool_id", "is_expandable"):
            if key not in s:
                yield f"{where}: no {key}"
        yield from check_frames(where, s)


def covered(ranges, begin, end):
    """Whether [begin, end) lies inside the union of half-open ranges, sorted."""
    for low, high in ranges:
        if low <= begin < high:
            begin = high
        if begin >= end:
            return True
    return False


def cut(ranges, begin, end):
    kept = []
    for low, high in ranges:
        if high <= begin or low >= end:
            kept.append((low, high))
            continue
        if low < begin:
            kept.append((low, begin))
        if end < high:
            kept.append((end, high))
    return sorted(kept)


def check_trace(entries, segments):
    ranges = sorted((s["address"], s["address"] + s["total_size"]) for s in segments)
    exact = {s["address"]: s["total_size"] for s in segments}
    blocks = {b["address"]: b["state"] for s in segments for b in s["blocks"] if b["state"] != "inactive"}
    ends = {b["address"]: b["address"] + b["size"] for s in segments for b in s["blocks"]}

    def held(begin, end):
        return any(address < end and begin < ends[address] for address in blocks)

    later = None
    for i, e in reversed(list(enumerate(entries))):
        where = f"entry {i} ({e['action']})"
        if e["action"] not in ACTIONS:
            yield f"{where}: unknown action"
        for key in ("size", "stream", "time_us", "device_free" if e["action"] == "oom" else "addr"):
            if key not in e:
                yield f"{where}: no {key}"
        yield from check_frames(where, e)
        if later is not None and e["time_us"] > later:
            yield f"{where}: time runs backwards"
        later = e["time_us"]
        if e["action"] in ("oom", "snapshot"):
            continue
        begin, end = e["addr"], e["addr"] + e["size"]
        if e["action"] == "free_completed":
            if held(begin, max(end, begin + 1)):
                yield f"{where}: a block is there afterwards"
            if not covered(ranges, begin, max(end, begin + 1)):
                yield f"{where}: outside of all segments"
            blocks[begin] = "active_pending_free"
            ends[begin] = max(end, begin + 1)
        elif e["action"] == "free_requested":
            if blocks.get(begin) != "active_pending_free":
                yield f"{where}: its block does not wait"
            blocks[begin] = "active_allocated"
        elif e["action"] == "alloc":
            if blocks.pop(begin, None) != "active_allocated":
                yield f"{where}: its block does not live afterwards"
        elif e["action"] in ("segment_free", "segment_unmap"):
            if held(begin, end) or cut(ranges, begin, end) != ranges:
                yield f"{where}: mapped afterwards"
            ranges = sorted(ranges + [(begin, end)])
            exact[begin] = e["size"]
        else:
            if e["action"] == "segment_alloc" and exact.pop(begin, None) != e["size"]:
                yield f"{where}: no such segment afterwards"
            if held(begin, end) or not covered(ranges, begin, end):
                yield f"{where}: not mapped afterwards, or under a block"
            ranges = cut(ranges, begin, end)
    if any("category" in e for e in entries) and all(e.get("category") != "unknown" for e in entries):
        yield "no entry has the category 'unknown'"


def read(path):
    with open(path, "rb") as file:
        data = file.read()
    return data, pickle.loads(data) if data[:1] == b"\x80" else json.loads(data)


def violations(data, snapshot):
    if data[:1] == b"\x80":
        yield from check_opcodes(data)
    yield from check_plain(snapshot)
    for key in ("segments", "device_traces", "allocator_settings", "external_annotations"):
        if key not in snapshot:
            yield f"no {key}"
    for key, kind in SETTINGS.items():
        if type(snapshot["allocator_settings"].get(key)) is not kind:
            yield f"allocator_settings: {key} is missing or of another type"
    yield from check_segments(snapshot["segments"])
    for device, entries in enumerate(snapshot["device_traces"]):
        own = [s for s in snapshot["segments"] if s["device"] == device]
        for violation in check_trace(entries, own):
            yield f"device {device}: {violation}"
    for annotation in snapshot["external_annotations"]:
        if annotation["stage"] not in ("START", "END") or not {"name", "device", "time_us"} <= annotation.keys():
            yield f"annotation {annotation}"


def damages(snapshot):
    """One damaged copy after the other, with what was done to it."""
    def copy():
        return json.loads(json.dumps(snapshot))

    def drop(action):
        damaged = copy()
        for entries in damaged["device_traces"]:
            for i in reversed(range(len(entries))):
                if entries[i]["action"] == action:
                    del entries[i]
                    return damaged
        raise AssertionError(f"no {action} to leave out")

    for action in ("free_requested", "free_completed", "segment_unmap"):
        yield f"the last {action} is left out", drop(action)
    damaged = copy()
    damaged["segments"][0]["blocks"][0]["size"] += 64
    yield "a block is longer", damaged
    damaged = copy()
    damaged["segments"][0]["total_size"] += 64
    yield "a segment is longer", damaged
    damaged = copy()
    entries = next(e for e in damaged["device_traces"] if e)
    first = next(i for i, e in enumerate(entries) if e["action"] == "alloc")
    entries.insert(first + 1, {**entries[first], "action": "segment_map"})
    yield "pages are mapped under a block", damaged
    damaged = copy()
    damaged["segments"].pop()
    yield "a segment is missing", damaged
    damaged = copy()
    entries = next(e for e in damaged["device_traces"] if e)
    entries[0]["time_us"] = entries[-1]["time_us"] + 1
    yield "time runs backwards", damaged
    damaged = copy()
    entries = next(e for e in damaged["device_traces"] if e)
    for e in entries:
        e["category"] = "parameter"
    yield "no category is unknown", damaged
    for key in SETTINGS:
        damaged = copy()
        del damaged["allocator_settings"][key]
        yield f"the setting {key} is missing", damaged
    kinds = {"a segment": lambda s: s["segments"][0], "a block": lambda s: s["segments"][0]["blocks"][0],
             "an entry": lambda s: next(e for e in s["device_traces"] if e)[0]}
    for kind, item_of in kinds.items():
        damaged = copy()
        del item_of(damaged)["frames"]
        yield f"{kind} has no frames", damaged
        damaged = copy()
        item_of(damaged)["frames"].append({"name": "f", "filename": "a.cpp"})
        yield f"a frame of {kind} has no line", damaged


def wrong_opcodes():
    """Small pickles that check_opcodes() judges wrongly."""
    for data, expected in ((b"\x80\x02](" + b"K\x01" * 1000 + b"e.", []),
                           (b"\x80\x02](" + b"K\x01" * 1001 + b"e.", ["byte 2006: a batch of 1001 items"]),
                           (b"\x80\x05].", ["protocol 5"]),
                           (b"\x80\x02\x8a\x09" + b"\x01" * 9 + b".", ["byte 2: an integer of 9 bytes"]),
                           (b"\x80\x02\x8f.", ["byte 2: opcode EMPTY_SET"])):
        found = list(check_opcodes(data))
        if found != expected:
            yield f"{expected} expected of a pickle, but found {found}"


def main():
    bad = 0
    files = []
    if "--damaged" in sys.argv:
        for wrong in wrong_opcodes():
            bad += 1
            print(wrong)
    for path in map(pathlib.Path, (name for name in sys.argv[1:] if name != "--damaged")):
        files += sorted(path.iterdir()) if path.is_dir() else [path]
    for path in files:
        data, snapshot = read(path)
        if "--damaged" not in sys.argv:
            for violation in violations(data, snapshot):
                bad += 1
                print(f"{path}: {violation}")
            continue
        for what, damaged in damages(snapshot):
            if not any(True for _ in violations(b"", damaged)):
                bad += 1
                print(f"{path}: not noticed: {what}")
    return 1 if bad or not files else 0


if __name__ == "__main__":
    sys.exit(main())
