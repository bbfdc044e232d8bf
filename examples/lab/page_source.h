// The files of examples/lab/page, put into the program by embed.cmake.
#pragma once

namespace poolgrad::examples {

/// With @STYLE@, @SCRIPT@ and @DATA@ once each.
extern const char* const page_template;
extern const char* const page_style;
extern const char* const page_script;

}  // namespace poolgrad::examples
