# Fails when a function outside namespace membound::cpu::avx2 or avx512 uses a ymm or zmm register,
# or when a unit of one of them offers a weak symbol, which the linker could keep for everybody.
execute_process(
  COMMAND ${OBJDUMP} -d --no-show-raw-insn ${ARCHIVE}
  OUTPUT_VARIABLE _code
  COMMAND_ERROR_IS_FATAL ANY
)
string(REGEX MATCHALL "\n[0-9a-f]+ <[^\n]*>:|[^\n]*%[yz]mm[0-9]" _lines "${_code}")
set(_wide 0)
foreach(line IN LISTS _lines)
  if(line MATCHES "<(.*)>:")
    set(_function ${CMAKE_MATCH_1})
  elseif(_function MATCHES "8membound3cpu(4avx2|6avx512)")
    math(EXPR _wide "${_wide} + 1")
  else()
    message(FATAL_ERROR "wide register in ${_function}: ${line}")
  endif()
endforeach()
if(_wide EQUAL 0)
  message(FATAL_ERROR "no wide register anywhere: the check reads the wrong file")
endif()
execute_process(
  COMMAND ${OBJDUMP} -t ${ARCHIVE}
  OUTPUT_VARIABLE _symbols
  COMMAND_ERROR_IS_FATAL ANY
)
string(REGEX MATCHALL "\n[^\n]* w [^\n]*8membound3cpu(4avx2|6avx512)[^\n]*" _weak "${_symbols}")
if(_weak)
  message(FATAL_ERROR "weak symbols in an instruction-set unit: ${_weak}")
endif()
message(STATUS "${_wide} instructions use wide registers, all in their own namespaces")
