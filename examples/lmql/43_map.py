"""One query for many rows."""

import lmql_lite as lmql


@lmql.query(model="demo")
def sentiment(review):
    """lmql
    "Review: {review}\nSentiment:[MOOD]" where MOOD in [" positive", " neutral", " negative"]
    return MOOD.strip()
    """


REVIEWS = ["The room was clean.", "The staff was rude.", "The hotel is near the station."]

if __name__ == "__main__":
    for review, result in zip(REVIEWS, sentiment.map_sync(REVIEWS, concurrency=2), strict=True):
        print(f"{result.value}: {review}")
