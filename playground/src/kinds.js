// What the kinds of tokens are called, and which mark each has beside its colour.

export const SOURCES = {
  prompt: "the program's text",
  cache: "known before this run, so nobody was asked",
  model: "said by the model",
  draft: "guessed, and the model agreed",
  forced: "the only thing that a condition allowed, or given; so nobody was asked",
  dropped: "thrown away: a wrong guess, or taken back",
};

export const FATES = {
  kept: "in the text",
  cut: "past the end of its hole",
  removed: "of a nested query that has returned",
  rejected: "taken back",
  pruned: "of a hypothesis that was given up",
  missed: "guessed, and the run did not come by",
};

export const ENDINGS = {
  stop: "it reached a phrase that ends it",
  "end-of-text": "the model ended its text",
  bound: "it reached its length limit",
  forced: "its conditions, or whoever gave its text, left nothing more to say",
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
