# Finds a CUDA compiler for MEMBOUND_CUDA = AUTO | ON | OFF and sets MEMBOUND_WITH_CUDA.
# Order: CMAKE_CUDA_COMPILER or CUDACXX, nvcc on the PATH or under CUDA_HOME, the PyPI toolkit.
if(NOT MEMBOUND_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "MEMBOUND_CUDA must be AUTO, ON or OFF, not '${MEMBOUND_CUDA}'")
endif()
set(MEMBOUND_WITH_CUDA OFF)
if(MEMBOUND_CUDA STREQUAL "OFF")
  message(STATUS "membound: CUDA switched off, CPU-only build")
  return()
endif()

if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  find_program(_nvcc nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATH_SUFFIXES bin NO_CACHE)
  if(NOT _nvcc)
    # The wheels of cuda-toolkit[nvcc,...] install one folder, nvidia/cu13, beside Python's packages.
    if(NOT Python_EXECUTABLE)
      find_program(_python3 NAMES python3 python NO_CACHE)
    else()
      set(_python3 ${Python_EXECUTABLE})
    endif()
    if(_python3)
      execute_process(
        COMMAND
          ${_python3} -c
          "import importlib.util as u\ntry: s = u.find_spec('nvidia.cu13')\nexcept ImportError: s = None\nprint(list(s.submodule_search_locations)[0] if s else '')"
        OUTPUT_VARIABLE _cu13
        OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET
      )
    endif()
    if(_cu13 AND EXISTS "${_cu13}/bin/nvcc")
      set(_nvcc "${_cu13}/bin/nvcc")
      # Those wheels hold lib/, while their nvcc.profile points the linker at lib64/.
      string(APPEND CMAKE_CUDA_FLAGS_INIT " -L${_cu13}/lib")
    endif()
  endif()
  if(_nvcc)
    set(CMAKE_CUDA_COMPILER "${_nvcc}")
  endif()
endif()

# This machine's GPU when it has one; else a short list that runs on data-centre and desktop parts.
# Release builds pass the long one (pyproject.toml, [tool.cibuildwheel]).
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES AND NOT DEFINED ENV{CUDAARCHS})
  if(EXISTS /dev/nvidia0)
    set(CMAKE_CUDA_ARCHITECTURES native)
  else()
    set(CMAKE_CUDA_ARCHITECTURES 80-real 90-real 120)
  endif()
endif()

if(CMAKE_CUDA_COMPILER OR DEFINED ENV{CUDACXX})
  enable_language(CUDA)
  if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 12.8)
    message(FATAL_ERROR "membound needs nvcc 12.8 or newer, found ${CMAKE_CUDA_COMPILER_VERSION}; "
                        "set MEMBOUND_CUDA=OFF for a CPU-only build")
  endif()
  set(MEMBOUND_WITH_CUDA ON)
  message(STATUS "membound: CUDA ${CMAKE_CUDA_COMPILER_VERSION} for ${CMAKE_CUDA_ARCHITECTURES}")
elseif(MEMBOUND_CUDA STREQUAL "ON")
  message(FATAL_ERROR "MEMBOUND_CUDA=ON, but there is no nvcc: set CUDACXX or CUDA_HOME, or "
                      "pip install 'cuda-toolkit[nvcc,nvvm,crt,cudart,cccl]==13.0.2', "
                      "or use MEMBOUND_CUDA=OFF")
else()
  message(WARNING "membound: no nvcc found, so this is a CPU-ONLY build "
                  "(MEMBOUND_CUDA=ON makes this an error, MEMBOUND_CUDA=OFF silences it)")
endif()
