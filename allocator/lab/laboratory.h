// The laboratory: workloads, their replay by allocation policies, packing, advice, and files of traces.
#pragma once

#include "allocator/lab/advice.h"
#include "allocator/lab/formats/trace_file.h"
#include "allocator/lab/replay/replay.h"
#include "allocator/lab/zoo/zoo.h"
#include "allocator/planner/packer.h"
