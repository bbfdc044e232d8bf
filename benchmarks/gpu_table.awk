# awk -f gpu_table.awk kernels.json products.json attention.json attention_mma.json steps.json steps_mma.json: prints
# the Google Benchmark results of ./run gpu-check as tables. Each figure has its share of a ceiling measured on the
# device: the driver's copies, or the product of 8192 x 8192 x 8192 in the same dtype. Files may be missing or cut off.

FNR == 1 { keep(); kind = FILENAME; sub(/.*\//, "", kind); sub(/\.json$/, "", kind) }
/^ *"[a-zA-Z_]+": / {
  key = $1
  gsub(/[":]/, "", key)
  value = $0
  sub(/^[^:]*: */, "", value)
  sub(/,$/, "", value)
  gsub(/^"|"$/, "", value)
  if (key == "name") { keep(); name = value } else field[key] = value
}
END { keep(); kernels(); products(); attention(); steps() }

# The benchmark whose fields were read last joins those of its kind.
function keep(  n) {
  if (name != "") {
    n = ++count[kind]
    named[kind, n] = name
    for (key in field) found[kind, n, key] = field[key]
  }
  name = ""
  split("", field)
}

function number(name, key,  parts) {  # of queries:4096
  return match(name, "/" key ":[0-9]+") ? substr(name, RSTART + length(key) + 2, RLENGTH - length(key) - 2) + 0 : 0
}

function kernels(  i, parts, n, op, bytes, share, size, order, sizes, s, missed) {
  if (!count["kernels"]) return
  for (i = 1; i <= count["kernels"]; ++i) {
    n = split(named["kernels", i], parts, "/")
    op = parts[1]
    for (s = 2; s < n && parts[s] !~ /^[0-9]+$/; ++s) op = op "/" parts[s]
    size = parts[s] * parts[s + 1] * 4 / 1048576
    if (!(op in seen)) { seen[op] = 1; order[++ops] = op }
    if (!(size in known)) { known[size] = 1; sizes[++columns] = size }
    share = found["kernels", i, "of_copy"] + 0
    bytes = found["kernels", i, "bytes_per_second"] + 0
    if (found["kernels", i, "error_message"] != "") {
      cell[op, size] = found["kernels", i, "error_message"]
    } else if (share > 0) {
      ceiling[size] = bytes / share
      cell[op, size] = sprintf("%7.0f GB/s %5.1f %% %s", bytes / 1e9, 100 * share, share >= 0.85 ? "met" : "missed")
      if (share < 0.85) ++missed
    } else {
      cell[op, size] = sprintf("%7.0f GB/s", bytes / 1e9)
    }
  }
  print "\nkernels: bytes read and written a second, and the share of the driver's own copies; the goal is 85 %"
  printf "%-26s", "driver's copy"
  for (s = 1; s <= columns; ++s) printf "  %-31s", sprintf("%7.0f GB/s at %g MiB", ceiling[sizes[s]] / 1e9, sizes[s])
  print ""
  for (i = 1; i <= ops; ++i) {
    printf "%-26s", order[i]
    for (s = 1; s <= columns; ++s) printf "  %-31s", cell[order[i], sizes[s]]
    print ""
  }
  print missed ? "the goal is missed " missed " times" : "the goal is met"
}

# TFLOP/s, with the share of what the largest product of the dtype reaches.
function rate(flops, dtype) {
  return sprintf("%7.1f", flops / 1e12) (peak[dtype] > 0 ? sprintf(" %3.0f%%", 100 * flops / peak[dtype]) : "")
}

function products(  i, parts, dtype, row, shape, order, shapes, rows, columns, s) {
  if (!count["products"]) return
  for (i = 1; i <= count["products"]; ++i)
    if (named["products", i] ~ /\/forward\/tokens:8192\/in:8192\/out:8192/) {
      split(named["products", i], parts, "/")
      peak[parts[3]] = found["products", i, "FLOPS"] + 0
    }
  print "\nproducts (tokens x in x out): TFLOP/s, and the share of the forward one of 8192 x 8192 x 8192"
  for (i = 1; i <= count["products"]; ++i) {
    split(named["products", i], parts, "/")
    row = parts[3] " " parts[4]
    shape = number(named["products", i], "tokens") "x" number(named["products", i], "in") "x" \
            number(named["products", i], "out")
    if (!((row) in placed)) { placed[row] = 1; order[++rows] = row }
    if (!((shape) in placed)) { placed[shape] = 1; shapes[++columns] = shape }
    result[row, shape] = found["products", i, "error_message"] != "" ? found["products", i, "error_message"] \
                                                                    : rate(found["products", i, "FLOPS"], parts[3])
  }
  printf "%-19s", ""
  for (s = 1; s <= columns; ++s) printf " %15s", shapes[s]
  print ""
  for (i = 1; i <= rows; ++i) {
    printf "%-19s", order[i]
    for (s = 1; s <= columns; ++s) printf " %15s", result[order[i], shapes[s]]
    print ""
  }
}

function attention(  i, k, parts, kinds, row) {
  if (!count["attention"] && !count["attention_mma"]) return
  print "\nattention: TFLOP/s, and the share of the largest product of the dtype: portable kernels, tensor cores"
  split("attention attention_mma", kinds, " ")
  for (k = 1; k <= 2; ++k)
    for (i = 1; i <= count[kinds[k]]; ++i) {
      row = named[kinds[k], i]
      if (!(row in listed)) { listed[row] = 1; lines[++many] = row }
      split(row, parts, "/")
      speed[row, k] = found[kinds[k], i, "error_message"] != "" ? found[kinds[k], i, "error_message"] \
                                                                : rate(found[kinds[k], i, "FLOPS"], parts[2])
    }
  for (i = 1; i <= many; ++i) {
    split(lines[i], parts, "/")
    printf "%-54s  %-14s  %s\n", sprintf("%s %s %s, %d of %d heads", parts[2], parts[3], parts[4],
           number(lines[i], "queries"), number(lines[i], "heads")), speed[lines[i], 1], speed[lines[i], 2]
  }
}

function steps(  i, k, kinds, row, shape) {
  if (!count["steps"] && !count["steps_mma"]) return
  print "\ntraining steps (batch, context, width, layers, heads, vocabulary): ms, tokens a second"
  split("steps steps_mma", kinds, " ")
  for (k = 1; k <= 2; ++k)
    for (i = 1; i <= count[kinds[k]]; ++i) {
      row = named[kinds[k], i]
      shape = number(row, "B") ", " number(row, "T") ", " number(row, "C") ", " number(row, "L") ", " number(row, "H") \
              ", " number(row, "V")
      sub(/\/B:.*/, "", row)
      printf "%-42s %-28s %s\n", row (k == 2 ? ", tensor cores" : ""), "(" shape ")", \
        found[kinds[k], i, "error_message"] != "" ? found[kinds[k], i, "error_message"] : \
        sprintf("%9.2f ms %12.0f", found[kinds[k], i, "real_time"], found[kinds[k], i, "items_per_second"])
    }
}
