# Finds a CUDA compiler for MEMBOUND_CUDA = AUTO | ON | OFF and sets MEMBOUND_WITH_CUDA.
# Order: CMAKE_CUDA_COMPILER or CUDACXX, nvcc on the PATH or under CUDA_HOME, the toolkit that
# pip installs. MEMBOUND_NVCC=pypi in the environment asks for the last one outright: then
# pyproject.toml makes it a build requirement.
if(NOT MEMBOUND_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "MEMBOUND_CUDA must be AUTO, ON or OFF, not '${MEMBOUND_CUDA}'")
endif()
set(MEMBOUND_WITH_CUDA OFF)
if(MEMBOUND_CUDA STREQUAL "OFF")
  message(STATUS "membound: CUDA switched off, CPU-only build")
  return()
endif()

# cuda-toolkit[nvcc,...] installs one folder, nvidia/cu13, beside Python's packages.
function(membound_find_pypi_nvcc result)
  set(_python3 ${Python_EXECUTABLE})
  if(NOT _python3)
    find_program(_python3 NAMES python3 python NO_CACHE)
  endif()
  set(${result} "" PARENT_SCOPE)
  if(_python3)
    execute_process(
      COMMAND
        ${_python3} -c
        "import importlib.util as u; print(*u.find_spec('nvidia.cu13').submodule_search_locations)"
      OUTPUT_VARIABLE _cu13
      OUTPUT_STRIP_TRAILING_WHITESPACE
      ERROR_QUIET
    )
    if(_cu13 AND EXISTS "${_cu13}/bin/nvcc")
      set(${result} "${_cu13}/bin/nvcc" PARENT_SCOPE)
    endif()
  endif()
endfunction()

if(NOT CMAKE_CUDA_COMPILER)
  if(DEFINED ENV{CUDACXX})
    set(CMAKE_CUDA_COMPILER "$ENV{CUDACXX}")
  else()
    if(NOT "$ENV{MEMBOUND_NVCC}" STREQUAL "pypi")
      find_program(_nvcc nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATH_SUFFIXES bin NO_CACHE)
    endif()
    if(_nvcc)
      # A wrapper outlives the toolkit that it calls.
      execute_process(
        COMMAND ${_nvcc} --version
        RESULT_VARIABLE _nvcc_fails
        OUTPUT_QUIET
        ERROR_QUIET
      )
      if(_nvcc_fails)
        message(WARNING "membound: ${_nvcc} does not run and is left out")
        unset(_nvcc)
      endif()
    endif()
    if(NOT _nvcc)
      membound_find_pypi_nvcc(_nvcc)
    endif()
    if(_nvcc)
      set(CMAKE_CUDA_COMPILER "${_nvcc}")
    endif()
  endif()
endif()
if(NOT CMAKE_CUDA_COMPILER)
  if(MEMBOUND_CUDA STREQUAL "ON")
    message(
      FATAL_ERROR
      "MEMBOUND_CUDA=ON, but there is no nvcc: set CUDACXX or CUDA_HOME, or let pip fetch one "
      "with MEMBOUND_NVCC=pypi, or use MEMBOUND_CUDA=OFF"
    )
  endif()
  message(
    WARNING
    "membound: no nvcc found, so this is a CPU-ONLY build "
    "(MEMBOUND_CUDA=ON makes this an error, MEMBOUND_CUDA=OFF silences it)"
  )
  return()
endif()

# The pip toolkit holds lib/, while its nvcc.profile points the linker at lib64/.
cmake_path(GET CMAKE_CUDA_COMPILER PARENT_PATH _toolkit)
cmake_path(GET _toolkit PARENT_PATH _toolkit)
if(_toolkit MATCHES "/nvidia/cu[0-9]+$")
  string(APPEND CMAKE_CUDA_FLAGS_INIT " -L${_toolkit}/lib")
endif()

# This machine's GPU when it has one; else 9.0: each more is as long a build again, and PTX, which
# newer GPUs could compile, is a fourteenth of one (two cores: 481 s with it, 446 without). Release
# builds pass a list (noxfile.py, RELEASE_ARCHITECTURES).
set(_without_gpu 90-real)
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES AND NOT DEFINED ENV{CUDAARCHS})
  file(GLOB _gpus /dev/nvidia[0-9]*)
  if(_gpus)
    set(CMAKE_CUDA_ARCHITECTURES native)
  else()
    set(CMAKE_CUDA_ARCHITECTURES ${_without_gpu})
    message(
      STATUS
      "membound: nvcc but no GPU here, so the CUDA kernels are built for compute capability 9.0 "
      "alone; CUDAARCHS names others: '80-real;90-real', or '90' with PTX that newer GPUs compile"
    )
  endif()
endif()

enable_language(CUDA)
if(CMAKE_CUDA_ARCHITECTURES STREQUAL "native")
  # Named, so that cuda_status() can report it. Without a working driver there is nothing to name.
  set(CMAKE_CUDA_ARCHITECTURES ${CMAKE_CUDA_ARCHITECTURES_NATIVE})
  if(NOT CMAKE_CUDA_ARCHITECTURES MATCHES "^[0-9]+")
    set(CMAKE_CUDA_ARCHITECTURES ${_without_gpu})
  endif()
endif()
if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 12.8)
  message(
    FATAL_ERROR
    "membound needs nvcc 12.8 or newer, found ${CMAKE_CUDA_COMPILER_VERSION}; "
    "set MEMBOUND_CUDA=OFF for a CPU-only build"
  )
endif()
set(MEMBOUND_WITH_CUDA ON)
# What cuda_status() reports, e.g. "80 90 120"; a semicolon would split the definition in two.
string(REPLACE "-real" "" MEMBOUND_CUDA_TARGETS "${CMAKE_CUDA_ARCHITECTURES}")
string(REPLACE ";" " " MEMBOUND_CUDA_TARGETS "${MEMBOUND_CUDA_TARGETS}")
message(STATUS "membound: CUDA ${CMAKE_CUDA_COMPILER_VERSION} for ${CMAKE_CUDA_ARCHITECTURES}")
