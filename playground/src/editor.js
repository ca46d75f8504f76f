// The editor: CodeMirror where it was built, else a plain text area with the same problems beside it.

import { make } from "./dom.js";

/** What was built from npm; null in a checkout where nothing was. */
export async function loadRich() {
  try {
    return await import("./rich.js");
  } catch {
    return null;
  }
}

export function plainEditor({ parent, text, onChange }) {
  const area = make("textarea", {
    "aria-label": "query",
    spellcheck: "false",
    autocapitalize: "off",
    autocomplete: "off",
    wrap: "soft",
    oninput: onChange,
    onkeydown: indent,
  });
  area.value = text;
  parent.append(area);

  function indent(event) {
    if (event.key !== "Tab" || event.shiftKey || event.altKey || event.ctrlKey || !area.matches(":focus")) return;
    if (area.dataset.leaves) return; // after Escape, Tab leaves
    event.preventDefault();
    area.setRangeText("    ", area.selectionStart, area.selectionEnd, "end");
    onChange();
  }
  area.addEventListener("keydown", (event) => {
    if (event.key === "Escape") area.dataset.leaves = "yes";
    else if (event.key !== "Tab" && event.key !== "Shift") delete area.dataset.leaves;
  });
  return {
    text: () => area.value,
    open(document) {
      area.value = document;
      onChange();
    },
    document: () => area.value,
    setProblems: (problems) => area.setAttribute("aria-invalid", String(problems.length > 0)),
    select(from, to) {
      area.focus();
      area.setSelectionRange(from, to);
    },
    focus: () => area.focus(),
  };
}
