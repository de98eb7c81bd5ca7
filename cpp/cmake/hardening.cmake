# What distributions harden their libraries with. The kernels of an instruction set are objects of
# their own and go without: they take every pointer from checked code.
#
# exports: a version script, so that no inline function of ours can stand in for somebody else's.
function(membound_harden target exports)
  target_compile_options(
    ${target}
    PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fstack-protector -ffile-prefix-map=${PROJECT_SOURCE_DIR}/=>
  )
  if(NOT MEMBOUND_SANITIZE)
    target_compile_options(
      ${target}
      PRIVATE
        $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:Release>>:-U_FORTIFY_SOURCE
        -D_FORTIFY_SOURCE=2>
    )
  endif()
  target_link_options(${target} PRIVATE LINKER:-z,relro,-z,now,--version-script=${exports})
  set_property(TARGET ${target} APPEND PROPERTY LINK_DEPENDS ${exports})
endfunction()
