file(REMOVE_RECURSE ${WORK})
foreach(command "--install ${KEEL_BUILD} --prefix ${WORK}/prefix"
                "-S ${CONSUMER} -B ${WORK}/build -G ${GENERATOR} -DCMAKE_PREFIX_PATH=${WORK}/prefix"
                "--build ${WORK}/build")
  separate_arguments(arguments UNIX_COMMAND "${command}")
  execute_process(COMMAND ${CMAKE_COMMAND} ${arguments} RESULT_VARIABLE failed OUTPUT_VARIABLE said ERROR_VARIABLE said)
  if(failed)
    message(FATAL_ERROR "cmake ${command}\n${said}")
  endif()
endforeach()
execute_process(COMMAND ${WORK}/build/consumer RESULT_VARIABLE failed OUTPUT_VARIABLE said)
if(failed OR NOT said STREQUAL "0.707107\n")
  message(FATAL_ERROR "the consumer said '${said}' and ended with ${failed}")
endif()
