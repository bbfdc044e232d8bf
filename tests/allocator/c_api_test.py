"""The shared library through ctypes, as a Python program (or PyTorch) meets it: c_api_test.py LIBRARY"""

import ctypes
import json
import os
import sys
import tempfile
import threading
import unittest

CPU, CUDA, SIM = 0, 1, 2


def load(path):
    library = ctypes.CDLL(path)
    pointer, size, text = ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_char_p
    for kind in ("", "_host", "_sim"):
        getattr(library, f"poolgrad{kind}_malloc").restype = pointer
        getattr(library, f"poolgrad{kind}_malloc").argtypes = [size, ctypes.c_int, pointer]
        getattr(library, f"poolgrad{kind}_free").restype = None
        getattr(library, f"poolgrad{kind}_free").argtypes = [pointer, size, ctypes.c_int, pointer]
    library.poolgrad_configure_sim.argtypes = [ctypes.c_int, ctypes.c_size_t]
    library.poolgrad_trim.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_size_t, ctypes.POINTER(ctypes.c_size_t)]
    library.poolgrad_start_trace.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_size_t]
    library.poolgrad_snapshot.argtypes = [ctypes.c_int, ctypes.c_int, text, text]
    library.poolgrad_statistics_json.restype = pointer
    library.poolgrad_free_string.argtypes = [pointer]
    library.poolgrad_last_error.restype = text
    return library


def statistics(kind, index):
    text = library.poolgrad_statistics_json(kind, index)
    parsed = json.loads(ctypes.string_at(text))
    library.poolgrad_free_string(text)
    return parsed


class CInterface(unittest.TestCase):
    def test_memory_can_be_written_and_given_back(self):
        block = library.poolgrad_host_malloc(1000, 0, None)
        ctypes.memset(block, 7, 1000)
        self.assertEqual(ctypes.string_at(block, 1000), b"\x07" * 1000)
        self.assertEqual(statistics(CPU, 0)["requested_bytes.all.current"], 1000)
        library.poolgrad_host_free(block, 1000, 0, None)
        self.assertEqual(statistics(CPU, 0)["requested_bytes.all.current"], 0)

    def test_a_refusal_is_none_with_the_report(self):
        self.assertEqual(library.poolgrad_configure_sim(1, 4 << 20), 0)
        self.assertIsNone(library.poolgrad_sim_malloc(5 << 20, 1, None))
        self.assertIn(b"out of memory on sim:1: 5.00 MiB", library.poolgrad_last_error())

    def test_a_snapshot_has_what_was_recorded(self):
        library.poolgrad_start_trace(SIM, 2, 100)
        block = library.poolgrad_sim_malloc(54321, 2, None)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "snapshot.json")
            done = library.poolgrad_snapshot(SIM, 2, path.encode(), b"json")
            self.assertEqual(done, 0, library.poolgrad_last_error())
            with open(path) as file:
                snapshot = json.load(file)
        sizes = [block["requested_size"] for segment in snapshot["segments"] for block in segment["blocks"]
                 if block["state"].startswith("active_allocated")]
        self.assertEqual(sizes, [54321])
        library.poolgrad_sim_free(block, 54321, 2, None)

    def test_threads_may_come_and_go(self):
        def work():
            for size in range(1, 500):
                block = library.poolgrad_host_malloc(size, 0, None)
                ctypes.memset(block, size % 256, size)
                library.poolgrad_host_free(block, size, 0, None)

        for _ in range(3):
            threads = [threading.Thread(target=work) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        self.assertEqual(statistics(CPU, 0)["allocated_bytes.all.current"], 0)


if __name__ == "__main__":
    library = load(sys.argv.pop(1))
    unittest.main()
