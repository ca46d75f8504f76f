// Places for the parts of a tree. The trunk is straight and is wrapped like a line of text; what branches off stands below
// the part that it is an alternative to.

export const ROW = 34; // pixels from one row to the next
export const GAP = 30; // pixels between a part and the next

const INDENT = 24; // pixels, of a wrapped line
const MIN_WIDTH = 260; // of a line
const TURN = 6; // pixels between the parts and a line that goes down

/** Gives every run `x`, `row`, `isWrapped` and, where it is, `turn`, the x at which the line to it goes down; so that a line
 * of the tree has at most this width. Gives the size of the tree in pixels. */
export function layOut(top, width) {
  const size = { width: 0, height: 0 };
  let row = 0;
  for (const first of top.children) row = trunk(first, 0, row, Math.max(width, MIN_WIDTH), size) + 1;
  return size;
}

/** Lays out a part and what follows it from (x, row) on. Gives the last row that it takes. */
function trunk(first, x, row, line, size) {
  let at = x;
  let bottom = row;
  let ends = new Map(); // row -> where the last part in it ends
  let sides = []; // alternatives to the part that is placed
  for (let run = first; run; [run, ...sides] = run.children) {
    const isWrapped = run !== first && at > x && at + run.width > line;
    if (isWrapped) {
      run.turn = size.width + TURN; // right of everything so far
      size.width = run.turn + TURN;
      row = ++bottom;
      at = x + INDENT;
      ends = new Map();
    }
    put(run, at, row, isWrapped, size);
    for (const side of sides) {
      if (side.children.length) {
        bottom = trunk(side, at, bottom + 1, Math.max(line, at + 200), size);
        for (let taken = row + 1; taken <= bottom; taken++) ends.set(taken, Infinity);
        continue;
      }
      let free = row + 1;
      while ((ends.get(free) ?? -Infinity) > at - 8) free += 1;
      side.turn = run.turn;
      put(side, at, free, isWrapped, size);
      ends.set(free, at + side.width);
      bottom = Math.max(bottom, free);
    }
    at += run.width + GAP;
  }
  return bottom;
}

function put(run, x, row, isWrapped, size) {
  Object.assign(run, { x, row, isWrapped });
  size.width = Math.max(size.width, x + run.width + (run.hidden ? 70 : 0));
  size.height = Math.max(size.height, (row + 1) * ROW);
}
