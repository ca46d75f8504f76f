"""What LMQL called a certificate: every call of the model, in a file."""

import json
import tempfile
from pathlib import Path

import lmql_lite as lmql

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "run.json"
        query = '"Q: What is the capital of Cuba?\\nA:[CAPITAL]\\n" where STOPS_BEFORE(CAPITAL, "\\n")'
        lmql.run_sync(query, model="demo", cache=False, trace=file)
        trace = json.loads(file.read_text("utf-8"))
    print(sorted(trace))
