// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Everything is built with hidden visibility; this marks the exports of the shared library.
#if defined(__GNUC__)
#define MEMBOUND_API __attribute__((visibility("default")))
#else
#define MEMBOUND_API
#endif
