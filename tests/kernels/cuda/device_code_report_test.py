#!/usr/bin/env python3
"""What device_code_report.py reads and finds, on reports that are written here: no nvcc is needed."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().with_name("device_code_report.py")
ADD = "_ZN8poolgrad7kernels4cuda12map_elementsIfLm1ELm2ENS0_41_GLOBAL__N__{}_9_binary_cu_64bdac3b3AddIfEEEEvT_"
COPY = "_ZN8poolgrad7kernels4cuda9copy_wordIlEEvPT_"


def said(name, registers, stack=0, stores=0, loads=0, architecture="sm_90a"):
    return (f"ptxas info    : Compiling entry function '{name}' for '{architecture}'\n"
            f"ptxas info    : Function properties for {name}\n"
            f"    {stack} bytes stack frame, {stores} bytes spill stores, {loads} bytes spill loads\n"
            f"ptxas info    : Used {registers} registers, used 0 barriers\n"
            "ptxas info    : Compile time = 2.5 ms\n")


class DeviceCodeReport(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        for file in ("binary.cu", "rows/copy.cu"):
            (self.root / "sources" / file).parent.mkdir(parents=True, exist_ok=True)
            (self.root / "sources" / file).write_text("")
        self.report("binary.cu", said(ADD.format("3313e3a1"), 42))
        self.report("rows/copy.cu", said(COPY, 20))
        self.run_script("--write")

    def object_of(self, file):
        return str(self.root / "objects" / (file + ".o"))

    def report(self, file, text):
        path = pathlib.Path(self.object_of(file) + ".ptxas")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def run_script(self, *options, files=("binary.cu", "rows/copy.cu"), nvcc="13.0.88"):
        done = subprocess.run([sys.executable, SCRIPT, "--sources", self.root / "sources", "--table",
                               self.root / "registers.txt", "--nvcc", nvcc, *options, *map(self.object_of, files)],
                              stdout=subprocess.PIPE, text=True)
        return done.returncode, done.stdout

    def fault(self, **how):
        status, output = self.run_script(**how)
        self.assertEqual(status, 1, output)
        return output

    def test_the_table_has_a_readable_row_for_each_kernel(self):
        table = (self.root / "registers.txt").read_text()
        self.assertIn("nvcc 13.0, sm_90a: registers, stack, spills\n\n"
                      "binary.cu\n   42 0 0  map_elements<float, 1, 2, Add<float>>\n\n"
                      "rows/copy.cu\n   20 0 0  copy_word<long>\n", table)

    def test_what_the_table_was_written_from_keeps_to_it_and_so_does_less(self):
        self.assertEqual(self.run_script(), (0, "sm_90a: 2 kernels by nvcc 13.0, 0 of them with fewer registers than "
                                                "the table says\n"))
        self.report("binary.cu", said(ADD.format("aaaaaaaa"), 40))  # the hash of a file is no part of a name
        self.assertEqual(self.run_script()[0], 0)

    def test_more_registers_fail_by_name(self):
        self.report("binary.cu", said(ADD.format("3313e3a1"), 44))
        self.assertIn("binary.cu: map_elements<float, 1, 2, Add<float>> takes 44 registers, the table says 42\n",
                      self.fault())

    def test_a_stack_and_spills_fail_whatever_the_table_says(self):
        for frame in ((8, 0, 0), (0, 4, 0), (0, 0, 4)):
            self.report("rows/copy.cu", said(COPY, 20, *frame))
            self.run_script("--write")
            self.assertIn(f"rows/copy.cu: copy_word<long> has a stack of {frame[0]} bytes and {frame[1] + frame[2]} "
                          "bytes of spills\n", self.fault())

    def test_kernels_that_are_named_may_have_a_small_stack(self):
        name = "_ZN8poolgrad7kernels4cuda19attend_by_fragmentsIfLi128EEEvPT_"
        for stack, passes in ((256, True), (264, False)):
            self.report("rows/copy.cu", said(name, 255, stack, 40, 44))
            status, output = self.run_script("--write")
            self.assertEqual(status == 0, passes, output)

    def test_a_function_that_is_called_has_no_row_and_may_have_no_stack(self):
        called = ("ptxas info    : Function properties for __internal_pow\n"
                  "    {} bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n")
        self.report("rows/copy.cu", said(COPY, 20) + called.format(0))
        self.assertEqual(self.run_script()[0], 0)
        self.report("rows/copy.cu", said(COPY, 20) + called.format(40))
        self.assertIn("__internal_pow has a stack of 40 bytes", self.fault())

    def test_a_kernel_without_a_row_and_a_row_without_a_kernel_fail(self):
        self.report("rows/copy.cu", said(COPY.replace("Il", "If"), 20))
        output = self.fault()
        self.assertIn("rows/copy.cu: copy_word<float> is not in the table, it takes 20 registers\n", output)
        self.assertIn("rows/copy.cu: copy_word<long> is in the table and was not compiled\n", output)

    def test_a_source_that_is_not_compiled_fails(self):
        (self.root / "sources" / "new.cu").write_text("")
        self.assertIn("new.cu is not compiled: it is not among POOLGRAD_CUDA_SOURCES\n", self.fault())

    def test_another_nvcc_is_held_to_no_stack_and_no_spills_only_and_it_says_so(self):
        self.report("binary.cu", said(ADD.format("3313e3a1"), 60))
        self.assertEqual(self.run_script(nvcc="13.1.2"),
                         (0, "sm_90a: 2 kernels by nvcc 13.1 are held to no stack and no spills only: the registers of "
                             "the table are those of nvcc 13.0\n"))
        self.report("binary.cu", said(ADD.format("3313e3a1"), 60, 16))
        self.assertIn("has a stack of 16 bytes", self.fault(nvcc="13.1.2"))

    def test_an_architecture_that_the_table_is_not_for_is_told_of(self):
        self.report("binary.cu", said(ADD.format("3313e3a1"), 42) + said(ADD.format("3313e3a1"), 90, 8, architecture="sm_80"))
        status, output = self.run_script()
        self.assertEqual(status, 0)
        self.assertIn("sm_80: 1 kernels, 1 with a stack or spills, which the table, of sm_90a, does not hold\n", output)
        for file in ("binary.cu", "rows/copy.cu"):
            self.report(file, said(COPY, 20, architecture="sm_80"))
        self.assertIn("nothing was compiled for sm_90a, which the table is for\n", self.fault())


    def test_products_that_ptxas_has_serialised_fail_by_file(self):
        for code in ("C7508", "C7510", "C7515", "C7518", "C7520"):
            self.report("rows/copy.cu", said(COPY, 20) + f"ptxas info    : ({code}) Potential Performance Loss: wgmma\n")
            self.assertIn(f"rows/copy.cu: ({code}) Potential Performance Loss: wgmma\n", self.fault())
        for code in ("C7509", "C7519"):
            self.report("rows/copy.cu", said(COPY, 20) + f"ptxas info    : ({code}) is another thing\n")
            self.assertEqual(self.run_script()[0], 0)

    def compiled(self, said_of_copy):
        """Returns status and output for sm_80, with an nvcc that prints the given report."""
        nvcc, said_of_add = self.root / "nvcc", said(ADD.format("3313e3a1"), 42, architecture="sm_80")
        nvcc.write_text(f"#!/bin/sh\ncase $* in\n*rows/copy.cu) printf '%s' \"{said_of_copy}\" ;;\n"
                        f"*arch=compute_80,code=sm_80*binary.cu) printf '%s' \"{said_of_add}\" ;;\n"
                        "*) exit 1 ;;\nesac\n")
        nvcc.chmod(0o755)
        done = subprocess.run([sys.executable, SCRIPT, "--sources", self.root / "sources", "--compile", nvcc,
                               "--architecture", "sm_80"], stdout=subprocess.PIPE, text=True)
        return done.returncode, done.stdout

    def test_an_architecture_of_ptx_alone_is_compiled_and_held_to_no_stack_and_no_spills(self):
        self.assertEqual(self.compiled(said(COPY, 255, architecture="sm_80")), (0, "sm_80: 2 kernels\n"))
        status, output = self.compiled(said(COPY, 255, 16, 16, 16, architecture="sm_80"))
        self.assertEqual(status, 1)
        self.assertIn("rows/copy.cu: copy_word<long> has a stack of 16 bytes and 32 bytes of spills\n", output)


if __name__ == "__main__":
    unittest.main()
