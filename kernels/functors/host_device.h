// Marks functions that compile for the host and, under nvcc, for the device.
#pragma once

#if defined(__CUDACC__)
#define POOLGRAD_HD __host__ __device__
#else
#define POOLGRAD_HD
#endif
