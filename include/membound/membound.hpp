// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// The whole public interface except cuda_check.hpp, which needs the CUDA toolkit.
#include "membound/device.hpp"
#include "membound/device_buffer.hpp"
#include "membound/dtype.hpp"
#include "membound/error.hpp"
#include "membound/export.hpp"
#include "membound/ops/add_layer_norm.hpp"
#include "membound/ops/add_layer_norm_backward.hpp"
#include "membound/ops/add_rms_norm.hpp"
#include "membound/ops/add_rms_norm_backward.hpp"
#include "membound/ops/add_rms_norm_quant.hpp"
#include "membound/ops/gated_activation.hpp"
#include "membound/ops/gated_activation_backward.hpp"
#include "membound/ops/layer_norm.hpp"
#include "membound/ops/layer_norm_backward.hpp"
#include "membound/ops/rms_norm.hpp"
#include "membound/ops/rms_norm_backward.hpp"
#include "membound/ops/rms_norm_gated.hpp"
#include "membound/ops/rms_norm_gated_backward.hpp"
#include "membound/ops/rms_norm_quant.hpp"
#include "membound/staging.hpp"
#include "membound/stream.hpp"
#include "membound/stream_pool.hpp"
#include "membound/tensor_view.hpp"
#include "membound/version.hpp"
