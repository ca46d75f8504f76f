"""Scores of given texts, and text without a query."""

import lmql_lite as lmql

if __name__ == "__main__":
    scores = lmql.score_sync(
        "Is a tuna a bird, a fish or a mammal?\nAnswer:", [" bird", " fish", " mammal"], model="demo"
    )
    print(scores.best, [round(probability, 3) for probability in scores.probabilities])
    print(lmql.generate_sync("Q: What is the capital of Kenya?\nA:", stop="\n", max_tokens=8, model="demo"))
