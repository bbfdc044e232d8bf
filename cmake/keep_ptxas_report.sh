#!/bin/sh
# keep_ptxas_report.sh OBJECT COMMAND...: compiles, and keeps what ptxas -v says of each kernel in OBJECT.ptxas, where tests
# read it. All else that the compiler says, it says.
object=$1
shift
"$@" 2>"$object.said"
status=$?
report='^ptxas info\|^ *[0-9]* bytes stack frame'
grep "$report\|^ptxas warning" "$object.said" >"$object.ptxas"
grep -v "$report" "$object.said" >&2
rm -f "$object.said"
exit $status
