// All differentiable operators.
#pragma once

#include "autograd/operators/arithmetic.h"
#include "autograd/operators/construct.h"
#include "autograd/operators/convolution.h"
#include "autograd/operators/indexing.h"
#include "autograd/operators/losses.h"
#include "autograd/operators/matmul.h"
#include "autograd/operators/reductions.h"
#include "autograd/operators/rows.h"
#include "autograd/operators/sorting.h"
#include "autograd/operators/unary.h"
#include "autograd/operators/views.h"
#include "autograd/recurrence.h"
