#include "examples/support/svg.h"

#include <fmt/format.h>

#include "examples/support/console.h"
#include "examples/support/html.h"

namespace poolgrad::examples {

// Colors of categories as in lab/page/colour.js.
std::string_view svg_style() {
  return R"(
svg { --c0: #2f6fc4; --c1: #d9731a; --c2: #2e8f57; --c3: #8b52c4; --c4: #c43b52; --c5: #138a94; --axis: #8884; --limit: #b3261e; }
@media (prefers-color-scheme: dark) {
  svg { --c0: #6ea8f2; --c1: #f09a4a; --c2: #5fc48a; --c3: #b98af0; --c4: #f07a8c; --c5: #4fc4ce; --limit: #ff8a80; } }
svg text { font: 13px system-ui, sans-serif; fill: var(--text); paint-order: stroke; stroke: var(--page);
           stroke-width: 3px; stroke-linejoin: round; }
svg .quiet { fill: var(--quiet); } svg .end { text-anchor: end; } svg .middle { text-anchor: middle; }
svg .name { font-weight: 600; } svg .group { font-size: 15px; font-weight: 600; }
.grid { stroke: var(--axis); } .mark { stroke: #888; } .level { stroke: var(--quiet); stroke-dasharray: 5 4; }
.limit { stroke: var(--limit); stroke-dasharray: 6 4; } .faint { opacity: .35; stroke-width: 1; }
svg polyline, line.c0, line.c1, line.c2, line.c3, line.c4, line.c5 { fill: none; stroke-width: 1.8; stroke-linejoin: round; }
.c0 { stroke: var(--c0); } .c1 { stroke: var(--c1); } .c2 { stroke: var(--c2); }
.c3 { stroke: var(--c3); } .c4 { stroke: var(--c4); } .c5 { stroke: var(--c5); }
svg circle { fill: var(--page); stroke-width: 1.5; }
.place { fill: transparent; } .place:hover { fill: var(--soft); }
svg .reserved { stroke: var(--text); fill: none; stroke-width: 1; }
.parameter { fill: #3f74bd; background: #3f74bd; } .gradient { fill: #e0862a; background: #e0862a; }
.optimizer_state { fill: #8b62b8; background: #8b62b8; } .activation { fill: #419c62; background: #419c62; }
.input { fill: #bda22b; background: #bda22b; } .workspace { fill: #71808f; background: #71808f; }
.unknown { fill: #9299a3; background: #9299a3; } .query { fill: #22a39c; background: #22a39c; }
.key { fill: #167d90; background: #167d90; } .value { fill: #63bf90; background: #63bf90; }
.output { fill: #7c9630; background: #7c9630; } .scores { fill: #cf4357; background: #cf4357; }
.weights { fill: #e5799a; background: #e5799a; } .temp { fill: #a6744b; background: #a6744b; }
.comm { fill: #bf5bb1; background: #bf5bb1; } .mask { fill: #66712f; background: #66712f; }
.cache { fill: #4bb0e6; background: #4bb0e6; }
)";
}

std::string svg_line(std::string_view kind, double x1, double y1, double x2, double y2, const std::string& title) {
  return fmt::format("<line class=\"{}\" x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\"{}\n", kind, x1, y1, x2,
                     y2, title.empty() ? "/>" : fmt::format("><title>{}</title></line>", escaped(title)));
}

std::string svg_text(std::string_view kind, double x, double y, const std::string& text) {
  return fmt::format("<text class=\"{}\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", kind, x, y, escaped(text));
}

std::string svg_picture(double width, double height, const std::string& label, const std::string& body) {
  return fmt::format("<svg viewBox=\"0 0 {0} {1}\" role=\"img\" aria-label=\"{2}\">\n{3}</svg>\n", width, height,
                     escaped(label), body);
}

std::string svg_file(double width, double height, const std::string& label, const std::string& body) {
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" role=\"img\" "
      "aria-label=\"{2}\">\n<style>{3}{4}</style>\n<rect width=\"100%\" height=\"100%\" fill=\"var(--page)\"/>\n{5}"
      "</svg>\n",
      width, height, escaped(label), page_colours(), svg_style(), body);
}

}  // namespace poolgrad::examples
