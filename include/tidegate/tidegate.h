// Everything public.
#pragma once

#include "tidegate/backward.h"
#include "tidegate/decode.h"
#include "tidegate/error.h"
#include "tidegate/forward.h"
#include "tidegate/inputs.h"
#include "tidegate/plan.h"
#include "tidegate/rule.h"
#include "tidegate/tensor.h"
#include "tidegate/version.h"
