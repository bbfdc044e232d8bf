// The laboratory: workloads, their replay by allocation policies, packing, advice, and files of traces.
#pragma once

#include "allocator/replay/advice.h"
#include "allocator/replay/packer.h"
#include "allocator/replay/replay.h"
#include "allocator/replay/zoo/zoo.h"
#include "allocator/trace/trace_file.h"
