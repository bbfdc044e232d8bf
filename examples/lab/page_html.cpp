#include <string_view>

#include "examples/lab/page_data.h"
#include "examples/lab/page_source.h"

namespace poolgrad::examples {

std::string page_html(const PageInput& input, const PageLimits& limits) {
  const std::string data = embeddable(page_data(input, limits));
  std::string page;
  std::string_view rest = page_template;
  const auto put = [&](std::string_view mark, std::string_view text) {
    const std::size_t at = rest.find(mark);
    page.append(rest.substr(0, at)).append(text);
    rest.remove_prefix(at + mark.size());
  };
  put("@STYLE@", page_style);  // in the order of the template
  put("@DATA@", data);
  put("@SCRIPT@", page_script);
  return page.append(rest);
}

}  // namespace poolgrad::examples
