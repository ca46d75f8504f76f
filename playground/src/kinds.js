// What the kinds of tokens are called, and which mark each has beside its colour.

export const SOURCES = {
  prompt: "the program's text",
  cache: "known before this run",
  model: "said by the model",
  draft: "guessed, and the model agreed",
  forced: "the only thing that a condition allowed",
  dropped: "not in the text",
};

export const FATES = {
  kept: "in the text",
  cut: "past the end of its hole",
  removed: "of a nested query that has returned",
  rejected: "taken back",
  pruned: "of a hypothesis that was given up",
};

export const MARKS = { cache: "↺", draft: "»", forced: "■", dropped: "✕" };

/** The kind that a token is drawn as. */
export function sourceOf(token) {
  return token.fate === "kept" ? token.source : "dropped";
}

/** Null where the model was not asked. */
export function probability(token) {
  return token.logprob === null ? null : Math.exp(Math.min(token.logprob, 0));
}
