"""Makes the memory snapshots beside this file as PyTorch would, with Python's pickle and json.

    python3 make_snapshots.py      deterministic: writes the same bytes again
"""
import json
import os
import pickle

FOLDER = os.path.dirname(os.path.abspath(__file__))
BASE = 0x7F0A00000000
MIB = 1 << 20

FORWARD = [
    {"name": "malloc", "filename": "CUDACachingAllocator.cpp", "line": 1500},
    {"name": "forward", "filename": "/home/user/model.py", "line": 12},
    {"name": "main", "filename": "/home/user/train.py", "line": 99},
]
NATIVE_FRAMES = [{"name": "cudnn::run", "filename": "conv.cpp", "line": 7}]


def entry(action, addr, size, time_us, stream=0, frames=FORWARD, **more):
    key = "device_free" if action == "oom" else "addr"
    return {"action": action, key: addr, "size": size, "stream": stream, "time_us": time_us,
            "compile_context": "N/A", "user_metadata": "", "frames": frames, **more}


def block(address, size, requested, state, frames=(), **more):
    return {"address": address, "size": size, "requested_size": requested, "state": state, "frames": list(frames),
            **more}


def segment(address, blocks, stream=0, device=0, expandable=False, kind="large"):
    active = [b for b in blocks if b["state"] != "inactive"]
    return {"device": device, "address": address, "total_size": sum(b["size"] for b in blocks),
            "allocated_size": sum(b["size"] for b in active if b["state"] == "active_allocated"),
            "active_size": sum(b["size"] for b in active), "requested_size": sum(b["requested_size"] for b in active),
            "stream": stream, "segment_type": kind, "segment_pool_id": (0, 0), "is_expandable": expandable,
            "frames": [], "blocks": blocks}


def native():
    """cudaMalloc segments: blocks from before the first entry, one that another stream holds, one freed twice over."""
    side = 0x55AA12345678
    segments = [
        segment(BASE, [
            block(BASE, 512, 400, "active_allocated"),                       # before the first entry
            block(BASE + 512, 1024, 1000, "active_allocated", FORWARD),      # allocated in the trace
            block(BASE + 1536, 2048, 2000, "active_pending_free", FORWARD),  # waits for the side stream
            block(BASE + 3584, 2 * MIB - 3584, 0, "inactive"),
        ], kind="small"),
        segment(BASE + 64 * MIB, [block(BASE + 64 * MIB, 20 * MIB, 0, "inactive")], stream=side),
    ]
    trace = [
        entry("free_requested", BASE + 512, 700, 1000),  # a block from before
        entry("free_completed", BASE + 512, 700, 1000),
        entry("alloc", BASE + 512, 1000, 1010, category="parameter"),
        entry("alloc", BASE + 1536, 2000, 1020, category="temporary"),
        entry("segment_alloc", BASE + 64 * MIB, 20 * MIB, 1030, stream=side, frames=NATIVE_FRAMES),
        entry("alloc", BASE + 64 * MIB, 15 * MIB, 1031, stream=side, frames=NATIVE_FRAMES,
              user_metadata={"module": "conv1"}),
        entry("free_requested", BASE + 64 * MIB, 15 * MIB, 1040, stream=side),
        entry("alloc", BASE + 3584, 100, 1041),
        entry("free_completed", BASE + 64 * MIB, 15 * MIB, 1050, stream=side),
        entry("free_requested", BASE + 3584, 100, 1051),
        entry("free_completed", BASE + 3584, 100, 1051),
        entry("segment_alloc", BASE + 128 * MIB, 2 * MIB, 1052),
        entry("segment_free", BASE + 128 * MIB, 2 * MIB, 1053),
        entry("oom", 12345678, 80 << 30, 1054),
        entry("free_requested", BASE + 1536, 2000, 1060),
        entry("snapshot", 0, 3400, 1061),
    ]
    settings = {"PYTORCH_CUDA_ALLOC_CONF": "", "max_split_size": -1, "garbage_collection_threshold": 0.8,
                "expandable_segments": False, "unused": None, "roundup_power2_divisions": {"1": 0, "2": 0}}
    return {"segments": segments, "device_traces": [trace, []], "allocator_settings": settings,
            "external_annotations": [{"name": "ProfilerStep#1", "stage": "START", "device": 0, "time_us": 1005}]}


def expandable():
    """Mapped ranges on device 1, whose ring has overflowed."""
    segments = [
        segment(BASE, [block(BASE, 2 * MIB, 2 * MIB, "active_allocated"),
                       block(BASE + 2 * MIB, 2 * MIB, 0, "inactive")], device=1, expandable=True),
        segment(BASE + 8 * MIB, [block(BASE + 8 * MIB, 2 * MIB, 0, "inactive")], device=1, expandable=True),
    ]
    trace = [
        entry("segment_map", BASE, 2 * MIB, 5),
        entry("segment_map", BASE + 2 * MIB, 6 * MIB, 6),
        entry("alloc", BASE, 2 * MIB, 7),
        entry("segment_map", BASE + 8 * MIB, 2 * MIB, 8),
        entry("segment_unmap", BASE + 4 * MIB, 4 * MIB, 9),
    ]
    for e in trace:
        del e["frames"]
    return {"segments": segments, "device_traces": [[], trace],
            "allocator_settings": {"expandable_segments": True, "trace_alloc_overflowed": True},
            "external_annotations": []}


def legacy():
    """A plain list of segments as old versions wrote it: no addresses of blocks, histories, the old name of a state."""
    return [{
        "device": 0, "address": BASE, "total_size": 4096, "allocated_size": 1536, "active_size": 2560, "stream": 0,
        "segment_type": "small",
        "blocks": [
            {"size": 1536, "state": "active_allocated", "history": [
                {"addr": BASE, "real_size": 1400, "frames": FORWARD},
                {"addr": BASE, "real_size": 1000, "frames": NATIVE_FRAMES}]},
            {"size": 1024, "state": "active_awaiting_free", "requested_size": 1000},
            {"size": 1536, "state": "inactive"},
        ],
    }]


def write(name, data):
    with open(os.path.join(FOLDER, name), "wb") as file:
        file.write(data)


if __name__ == "__main__":
    for protocol in (2, 3, 4, 5):
        write(f"native_protocol{protocol}.pickle", pickle.dumps(native(), protocol=protocol))
    write("native.json", json.dumps(native()).encode())
    write("expandable.json", json.dumps(expandable()).encode())
    write("expandable.pickle", pickle.dumps(expandable(), protocol=4))
    write("legacy.pickle", pickle.dumps(legacy(), protocol=2))
