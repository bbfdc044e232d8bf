#!/usr/bin/env bash
# killed_at.sh MPIRUN MPI_MOMENTS FOLDER RANK MOMENTS...: kills one of three ranks at each of the moments. All ranks
# must end soon, name the killed one, and leave the old or the new checkpoint whole. Prints "as it should" if they do.
set -u
mpirun=$1 program=$2 folder=$3 rank=$4
shift 4
rm -rf "$folder" && mkdir -p "$folder"
fail() { echo "$1" && cat "$folder"/*/log && exit 1; }

# kill_at MOMENT: mpirun takes most of the time; it waits for the ranks that it ends.
kill_at() {
  local own=$folder/$1 before=$SECONDS
  mkdir "$own"
  timeout 30 "$mpirun" -n 3 "$program" "$own/run.safetensors" "$rank" "$1" >"$own/log" 2>&1 && fail "$1: it has ended well"
  [ $((SECONDS - before)) -le 15 ] || fail "$1: it took $((SECONDS - before)) s"
  grep -q "process rank $rank .*signal 9" "$own/log" || fail "$1: it does not say which rank"
  [ -z "$(pgrep -f "$program $own/")" ] || fail "$1: ranks are left"
}

for moment in "$@"; do
  [ "$(jobs -rp | wc -l)" -lt 4 ] || wait -n || exit 1
  kill_at "$moment" &
done
while [ -n "$(jobs -p)" ]; do wait -n || exit 1; done
steps=$("$program" "$folder"/*/run.safetensors 2>"$folder/start/log") || fail "a checkpoint is not whole: $steps"
for moment in "$@"; do
  case $moment in
    start | before_the_first_step) [ ! -e "$folder/$moment/run.safetensors" ] || fail "$moment: there is a checkpoint" ;;
    writing) allowed='[2]' ;;&
    renaming) [ "$rank" = 0 ] && allowed='[2]' || allowed='[23]' ;;&
    report | end) allowed='[23]' ;;&
    forward | ring_exchange | backward | gradient_reduction | optimizer_step) allowed='[2]' ;;&
    *) grep -q "/$moment/run.safetensors $allowed\$" <<<"$steps" || fail "$moment: $steps" ;;
  esac
done
echo "as it should"
