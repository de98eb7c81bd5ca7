# The bill of materials of a wheel (PEP 770): what is linked in, beside the system's libraries.
function(membound_linked_in name version licence)
  set(_licence "{ \"license\": { \"name\": \"${licence}\" } }")
  set(_text "{ \"type\": \"library\", \"name\": \"${name}\", \"version\": \"${version}\", ")
  set(_text "${_text}\"licenses\": [${_licence}] }")
  list(APPEND _components "${_text}")
  set(_components "${_components}" PARENT_SCOPE)
endfunction()
set(_components)
membound_linked_in(nanobind "${nanobind_VERSION}" BSD-3-Clause)
set(_cuda ${CMAKE_CUDA_COMPILER_VERSION} ${membound_CUDA_VERSION})
if(_cuda)
  membound_linked_in(cudart_static "${_cuda}" "NVIDIA CUDA Toolkit EULA")
endif()
list(JOIN _components ", " MEMBOUND_LINKED_IN)
configure_file(
  ${CMAKE_CURRENT_LIST_DIR}/sbom.cdx.json.in
  ${PROJECT_BINARY_DIR}/membound.cdx.json
  @ONLY
)
install(
  FILES ${PROJECT_BINARY_DIR}/membound.cdx.json
  DESTINATION ${SKBUILD_METADATA_DIR}/sboms
  COMPONENT runtime
)
