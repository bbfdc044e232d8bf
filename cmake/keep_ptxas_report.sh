#!/bin/sh
# keep_ptxas_report.sh OBJECT COMMAND...: compiles, and writes the report of ptxas -v about each kernel to OBJECT.ptxas,
# where tests read it. Prints all other output of the compiler.
object=$1
shift
"$@" 2>"$object.said"
status=$?
report='^ptxas info\|^ *[0-9]* bytes stack frame'
grep "$report\|^ptxas warning" "$object.said" >"$object.ptxas"
grep -v "$report" "$object.said" >&2
rm -f "$object.said"
exit $status
