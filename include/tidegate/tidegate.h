// Everything public.
#pragma once

#include "tidegate/error.h"
#include "tidegate/forward.h"
#include "tidegate/plan.h"
#include "tidegate/rule.h"
#include "tidegate/tensor.h"
#include "tidegate/version.h"
