# Fails when an nvcc on the PATH that does not run, a wrapper whose toolkit is gone, ends the
# configuration of SOURCE, or is used. BUILD: a folder for that.
file(REMOVE_RECURSE ${BUILD})
file(WRITE ${BUILD}/bin/nvcc "#!/bin/sh\necho no toolkit >&2\nexit 1\n")
file(CHMOD ${BUILD}/bin/nvcc PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)

function(configure cuda)
  execute_process(
    COMMAND
      ${CMAKE_COMMAND} -E env --unset=CUDACXX --unset=CUDA_HOME --unset=CUDA_PATH
      --unset=MEMBOUND_NVCC PATH=${BUILD}/bin:$ENV{PATH} ${CMAKE_COMMAND} -S ${SOURCE} -B
      ${BUILD}/${cuda} -DMEMBOUND_CUDA=${cuda} -DMEMBOUND_PYTHON=OFF -DMEMBOUND_TESTS=OFF
    RESULT_VARIABLE _result
    OUTPUT_VARIABLE _said
    ERROR_VARIABLE _said
  )
  string(REGEX REPLACE "[ \n]+" " " _said "${_said}") # messages are wrapped
  set(result ${_result} PARENT_SCOPE)
  set(said "${_said}" PARENT_SCOPE)
endfunction()

configure(AUTO)
if(NOT result EQUAL 0 OR NOT said MATCHES "bin/nvcc does not run and is left out")
  message(FATAL_ERROR "AUTO, ${result}: ${said}")
endif()
if(said MATCHES "CPU-ONLY build") # else pip has brought a toolkit
  configure(ON)
  if(result EQUAL 0 OR NOT said MATCHES "MEMBOUND_CUDA=ON, but there is no nvcc")
    message(FATAL_ERROR "ON, ${result}: ${said}")
  endif()
endif()
