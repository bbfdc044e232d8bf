#!/usr/bin/env bash
# train_endings.sh MPIRUN TRAIN FOLDER WAY: a training run on three ranks that ends early. Prints "as it should" if the
# run ends as expected. WAY: killed (a rank, during its steps), stopped (a signal to one rank), asked (a signal to all,
# through mpirun), corrupt (the checkpoint is cut off).
set -u
mpirun=$1 train=$2 folder=$3/$4 way=$4
rm -rf "$folder" && mkdir -p "$folder"
options=(--parallel data --batch 3 --context 64 --layers 1 --width 16 --attention causal --dtype f32 --sample 8 --report 1)
start() {
  timeout 60 "$mpirun" -n 3 "$train" "${options[@]}" --save "$folder/run.safetensors" "$@" \
    >"$folder/log" 2>&1 &
  run=$!
}
# wait_for TEXT: until the run has said it.
wait_for() {
  for _ in $(seq 300); do
    grep -q "$1" "$folder/log" && return
    sleep 0.1
  done
  echo "it never said $1:" && cat "$folder/log" && exit 1
}
ranks() { pgrep -f "$folder/run.safetensors --steps" | while read -r pid; do
  [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = train ] && echo "$pid"; done; }
fail() { echo "$1" && cat "$folder/log" && exit 1; }

case $way in
  killed)
    start --steps 1000000
    wait_for 'step *3/'
    kill -KILL "$(ranks | tail -n 1)"
    before=$SECONDS
    wait "$run" && fail "it has ended well"
    [ $((SECONDS - before)) -le 10 ] || fail "it took $((SECONDS - before)) s"
    [ -z "$(ranks)" ] || fail "ranks are left"
    grep -q 'signal 9' "$folder/log" || fail "it does not say why"
    [ "$(ls "$folder")" = log ] || fail "files are left: $(ls "$folder")"
    ;;
  stopped | asked)
    start --steps 1000000
    wait_for 'step *3/'
    if [ "$way" = asked ]; then
      pkill -USR1 -P "$run"  # mpirun, the child of timeout
    else
      kill -TERM "$(ranks | tail -n 1)"
    fi
    wait "$run" || fail "it has failed"
    [ "$(ls "$folder" | tr '\n' ' ')" = 'log run.safetensors ' ] || fail "files: $(ls "$folder")"
    [ "$(grep -c 'wrote' "$folder/log")" = 1 ] || fail "it was not written once"
    done=$(grep -o 'step *[0-9]*/' "$folder/log" | tail -n 1 | tr -dc 0-9)
    start --resume "$folder/run.safetensors" --steps 1000000 --stop-after $((done + 2))
    wait "$run" || fail "it cannot be gone on with"
    ;;
  corrupt)
    start --steps 2
    wait "$run" || fail "it has failed"
    truncate -s -50 "$folder/run.safetensors"
    start --resume "$folder/run.safetensors" --steps 4
    wait "$run" && fail "it took what was cut off"
    grep -q 'run.safetensors' "$folder/log" || fail "it does not say which file"
    ;;
esac
echo "as it should"
