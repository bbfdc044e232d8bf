// All differentiable operators.
#pragma once

#include "autograd/arithmetic.h"
#include "autograd/cast.h"
#include "autograd/dropout.h"
#include "autograd/embedding.h"
#include "autograd/indexing.h"
#include "autograd/joining.h"
#include "autograd/losses.h"
#include "autograd/matmul.h"
#include "autograd/norms.h"
#include "autograd/reductions.h"
#include "autograd/rope.h"
#include "autograd/softmax.h"
#include "autograd/unary.h"
#include "autograd/views.h"
