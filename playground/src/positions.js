// Places in a text. Python counts code points, browsers UTF-16 units.

/** The UTF-16 offset of a line and a column, both from 1, the column in code points; clamped to the text. */
export function offsetOf(text, line, column) {
  let at = 0;
  for (let number = 1; number < line; number++) {
    const end = text.indexOf("\n", at);
    if (end < 0) return text.length;
    at = end + 1;
  }
  for (let number = 1; number < column && at < text.length && text[at] !== "\n"; number++) {
    at += text.codePointAt(at) > 0xffff ? 2 : 1;
  }
  return at;
}

/** From and to of an event's span: line, column, end_line, end_column. One that is empty stands for the rest of its line. */
export function rangeOf(text, span) {
  const from = offsetOf(text, span.line, span.column);
  const to = Math.max(from, offsetOf(text, span.end_line, span.end_column));
  if (to > from) return { from, to };
  const end = text.indexOf("\n", from);
  return { from, to: end < 0 ? text.length : end };
}
